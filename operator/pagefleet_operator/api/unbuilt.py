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
    inert: str
    """The value to set, in words."""
    is_inert: Callable[[Any], bool]
    what: str
    """What the field would do."""


def _local(uri: str) -> bool:
    return parse_model_uri(uri).scheme in (ModelScheme.FILE, ModelScheme.PVC)


def _absent(value: Any) -> bool:
    return value is None


UNBUILT: Final = (
    Unbuilt(path="model.uri", inert="a file:// or pvc:// URI", is_inert=_local, what="fetching models"),
    Unbuilt(
        path="engine.kvCache.precision",
        inert="bf16",
        is_inert=lambda value: value is Precision.BF16,
        what="keeping sealed frames in another precision",
    ),
    Unbuilt(
        path="engine.kvCache.swapSpace",
        inert='"0"',
        is_inert=lambda value: parse_quantity(value) == 0,
        what="swapping frames to host memory",
    ),
    Unbuilt(
        path="engine.tensorParallelSize",
        inert="1",
        is_inert=lambda value: value == 1,
        what="sharing a model between devices",
    ),
    Unbuilt(path="autoscaling", inert="nothing (remove it)", is_inert=_absent, what="choosing the number of replicas"),
    Unbuilt(path="tuning.mode", inert="Off", is_inert=lambda value: value is Mode.OFF, what="moving the running cap"),
    Unbuilt(
        path="tuning.maxModelLen",
        inert="nothing (remove it)",
        is_inert=_absent,
        what="lowering the length of new requests",
    ),
    Unbuilt(
        path="routes[].structured",
        inert="Off",
        is_inert=lambda value: value == "Off",
        what="checking answers against their schema",
    ),
    Unbuilt(
        path="routes[].kvPrecision.policy",
        inert="Off",
        is_inert=lambda value: value is Mode.OFF,
        what="moving a route's precision",
    ),
    Unbuilt(
        path="routes[].kvPrecision.controlShare",
        inert='"0"',
        is_inert=lambda value: float(value) == 0,
        what="a control share",
    ),
    Unbuilt(
        path="routes[].kvPrecision.allowDemotion",
        inert="false",
        is_inert=lambda value: value is False,
        what="demoting frames",
    ),
    Unbuilt(
        path="routes[].kvPrecision.fp8MaxContext",
        inert="nothing (remove it)",
        is_inert=_absent,
        what="choosing a precision by length",
    ),
    Unbuilt(path="apiKeys", inert="nothing (remove it)", is_inert=_absent, what="checking API keys"),
)


def unbuilt_fields(spec: LLMServiceSpec) -> list[FieldProblem]:
    """Every field of the spec that asks for something this version cannot do."""
    return [
        FieldProblem(path=f"spec.{path}", message=f"{row.what} is not built yet: set it to {row.inert}")
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
