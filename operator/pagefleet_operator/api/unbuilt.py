"""Fields whose behaviour this version does not have: refused unless they hold their inert value, never ignored.

Whoever builds a behaviour removes its row and changes the field's default to the one of the design.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pagefleet_engine.contract.precision import Precision
from pagefleet_operator.api.model_uri import ModelScheme, parse_model_uri
from pagefleet_operator.api.problems import FieldProblem
from pagefleet_operator.api.quantities import parse_quantity
from pagefleet_operator.api.remedy_spec import Mode
from pagefleet_operator.api.v1alpha1 import LLMServiceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbuilt:
    """One field that may only hold its inert value."""

    path: str
    """In camelCase below spec; `[]` stands for every entry of a list."""
    what: str
    """What the field would do."""
    remedy: str
    """What to do about it."""
    is_inert: Callable[[Any], bool]


def _only(path: str, inert: Any, shown: str, what: str) -> Unbuilt:
    return Unbuilt(path=path, what=what, remedy=f"set it to {shown}", is_inert=lambda value: value == inert)


def _absent(path: str, what: str) -> Unbuilt:
    return Unbuilt(path=path, what=what, remedy="remove it", is_inert=lambda value: value is None)


def _is_local(uri: str) -> bool:
    return parse_model_uri(uri).scheme in (ModelScheme.FILE, ModelScheme.PVC)


_PRECISION: Final = "routes[].kvPrecision"
_ROUTE_REMEDY: Final = "moving a route's precision"

UNBUILT: Final = (
    Unbuilt(
        path="model.uri",
        what="fetching models from a hub or registry",
        remedy="use a file:// or pvc:// URI",
        is_inert=_is_local,
    ),
    _only("engine.kvCache.precision", Precision.BF16, "bf16", "keeping sealed frames in another precision"),
    Unbuilt(
        path="engine.kvCache.swapSpace",
        what="swapping frames to host memory",
        remedy='set it to "0"',
        is_inert=lambda value: parse_quantity(value) == 0,
    ),
    _only("engine.tensorParallelSize", 1, "1", "sharing a model between devices"),
    _absent("autoscaling", "choosing the number of replicas"),
    _only("tuning.mode", Mode.OFF, "Off", "moving the running cap"),
    _absent("tuning.maxModelLen", "lowering the length of new requests"),
    _only("routes[].structured", "Off", "Off", "checking answers against their schema"),
    _only(f"{_PRECISION}.policy", Mode.OFF, "Off", _ROUTE_REMEDY),
    _only(f"{_PRECISION}.fallback", Precision.BF16, "bf16", _ROUTE_REMEDY),
    Unbuilt(
        path=f"{_PRECISION}.controlShare",
        what="a control share",
        remedy='set it to "0"',
        is_inert=lambda value: float(value) == 0,
    ),
    _only(f"{_PRECISION}.allowDemotion", False, "false", "demoting frames under pressure"),
    _absent(f"{_PRECISION}.fp8MaxContext", "choosing a precision by length"),
    _only(f"{_PRECISION}.maxSchemaFailureRate", "0.05", '"0.05"', _ROUTE_REMEDY),
    _only(f"{_PRECISION}.minSamples", 50, "50", _ROUTE_REMEDY),
    _only(f"{_PRECISION}.windowRequests", 500, "500", _ROUTE_REMEDY),
    _only(f"{_PRECISION}.returnAfter", "30m", "30m", _ROUTE_REMEDY),
    _absent("apiKeys", "checking API keys"),
)


def unbuilt_fields(spec: LLMServiceSpec) -> list[FieldProblem]:
    """Every field of the spec that asks for something this version cannot do."""
    return [
        FieldProblem(path=f"spec.{path}", message=f"{row.what} is not built yet: {row.remedy}")
        for row in UNBUILT
        for path, value in _values(spec, row.path)
        if not row.is_inert(value)
    ]


def _values(spec: LLMServiceSpec, path: str) -> Iterator[tuple[str, Any]]:
    """The value at a path with its concrete path: one, or one per list entry."""
    found: list[tuple[str, Any]] = [("", spec)]
    for part in path.split("."):
        name, is_list = part.removesuffix("[]"), part.endswith("[]")
        stepped = [(f"{where}.{name}" if where else name, _field(value, name)) for where, value in found]
        if is_list:
            stepped = [(f"{where}[{index}]", item) for where, items in stepped for index, item in enumerate(items)]
        found = stepped
    yield from found


def _field(model: Any, alias: str) -> Any:
    names = {info.alias or name: name for name, info in type(model).model_fields.items()}
    return getattr(model, names[alias])
