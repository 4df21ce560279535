"""The bounded strings and numbers of the resource: names, quantities, durations, shares.

Each carries its format as one rule with a sentence, because "should match '^[a-z…$'" tells a person little.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from pagefleet_operator.api.base import Format
from pagefleet_operator.api.quantities import parse_duration, parse_quantity, parse_share

MAX_REPLICAS: Final = 256


def matching(pattern: str, message: str) -> Format:
    """A format given by a regular expression that RE2 and Python read alike."""
    compiled = re.compile(pattern)
    return Format(
        cel=f"self.matches(r'{pattern}')", message=message, holds=lambda text: compiled.fullmatch(text) is not None
    )


def duration_between(low: str, high: str, examples: str) -> Format:
    """A duration within bounds, both included."""
    least, most = parse_duration(low), parse_duration(high)
    text = r"^([0-9]{1,6}h)?([0-9]{1,6}m)?([0-9]{1,6}s)?([0-9]{1,6}ms)?$"
    return Format(
        cel=f"self != '' && self.matches(r'{text}') && duration(self) >= duration('{low}') "
        f"&& duration(self) <= duration('{high}')",
        message=f"must be a duration from {low} to {high}, such as {examples}",
        holds=lambda value: _between(parse_duration, value, least, most),
    )


def share_between(low: str, high: str, example: str) -> Format:
    """A share within bounds, both included."""
    least, most = parse_share(low), parse_share(high)
    return Format(
        cel=f"self.matches(r'^[01](\\.[0-9]{{1,6}})?$') && double(self) >= {least:.2f} && double(self) <= {most:.2f}",
        message=f'must be a quoted number from {low} to {high}, such as "{example}"',
        holds=lambda value: _between(parse_share, value, least, most),
    )


def quantity_from(low: str, examples: str) -> Format:
    """A Kubernetes quantity of at least so much."""
    least = parse_quantity(low)
    return Format(
        cel=f"isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('{low}')) >= 0",
        message=f"must be a quantity of at least {low}, such as {examples}",
        holds=lambda value: _between(parse_quantity, value, least, Decimal("Infinity")),
    )


def _between(parse: Callable[[str], Any], text: str, low: Any, high: Any) -> bool:
    try:
        return bool(low <= parse(text) <= high)
    except ValueError:
        return False


class _IntOrString:
    """Marks a type that the API server accepts as a number, too: people write `cpu: 2`."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        schema.pop("type", None)
        return schema | {"x-kubernetes-int-or-string": True}


def _number_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


_DNS_LABEL = matching(
    r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
    "must be at most 63 lower-case letters, digits or '-', and begin and end with a letter or digit",
)
_DNS_NAME = matching(
    r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$",
    "must be lower-case letters, digits, '-' or '.', and begin and end with a letter or digit",
)
_SERVED_NAME = matching(
    r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$",
    "must be letters, digits or any of . _ / : - and begin with a letter or digit",
)

Label = Annotated[str, Field(min_length=1, max_length=63), _DNS_LABEL]
ObjectName = Annotated[str, Field(min_length=1, max_length=253), _DNS_NAME]
ServedName = Annotated[str, Field(min_length=1, max_length=128), _SERVED_NAME]
Text = Annotated[str, Field(max_length=1024)]
MAX_SHORT: Final = 256
ShortText = Annotated[str, Field(max_length=MAX_SHORT)]

_NumberOrText = Annotated[str, BeforeValidator(_number_as_text), Field(max_length=32)]
Quantity = Annotated[_NumberOrText, quantity_from("0", "500m, 2 or 4Gi"), _IntOrString()]
PoolSize = Annotated[_NumberOrText, quantity_from("1Mi", "512Mi or 4Gi"), _IntOrString()]

DrainTimeout = Annotated[str, Field(max_length=16), duration_between("0s", "24h", "30s, 5m or 1h30m")]
Latency = Annotated[str, Field(max_length=16), duration_between("1ms", "1h", "100ms or 2s")]
QuietPeriod = Annotated[str, Field(max_length=16), duration_between("1m", "168h", "30m or 12h")]
MemoryShare = Annotated[str, Field(max_length=8), share_between("0.05", "0.99", "0.90")]
Share = Annotated[str, Field(max_length=8), share_between("0", "1", "0.80")]
ControlShare = Annotated[str, Field(max_length=8), share_between("0", "0.5", "0.05")]
ReplicaCount = Annotated[int, Field(ge=0, le=MAX_REPLICAS)]
