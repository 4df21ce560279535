"""What every type of the resource is built from: the frozen model, and rules that the API server and Python share.

A rule is written once, as CEL and as a Python predicate with one message, so that an object which the API server
would refuse today is refused with the same sentence when it was stored under an older schema.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

VALIDATIONS = "x-kubernetes-validations"
BROKEN_RULES = "broken_rules"
"""Error type under which broken rules reach `validation.validate`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A condition over several fields of one object."""

    cel: str
    message: str
    holds: Callable[[Any], bool]
    """The same condition on the parsed model."""
    field: str | None = None
    """The field to point at, in camelCase; None points at the object."""

    def as_cel(self) -> dict[str, str]:
        """The entry for `x-kubernetes-validations`."""
        path = {} if self.field is None else {"fieldPath": f".{self.field}"}
        return {"rule": self.cel, "message": self.message} | path


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A condition over one value, as an annotation of its type."""

    cel: str
    message: str
    holds: Callable[[Any], bool]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        return schema | {VALIDATIONS: [*schema.get(VALIDATIONS, ()), {"rule": self.cel, "message": self.message}]}

    def _check(self, value: Any) -> Any:
        if not self.holds(value):
            raise PydanticCustomError(BROKEN_RULES, "a rule is broken", {"broken": [(None, self.message)]})
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class MapList:
    """A list whose entries are told apart by one field; the API server merges and checks it by that key."""

    key: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(core) | {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [to_camel(self.key)]}

    def _check(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        keys = [getattr(item, self.key) for item in items]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        if twice:
            message = f"{to_camel(self.key)} {twice[0]!r} is used twice: give every entry its own"
            raise PydanticCustomError(BROKEN_RULES, "a rule is broken", {"broken": [(None, message)]})
        return items


class ApiModel(BaseModel):
    """A part of the resource: frozen, camelCase outside, attribute docstrings as descriptions."""

    model_config = ConfigDict(
        frozen=True, alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True, extra="forbid"
    )
    RULES: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        broken = [(rule.field, rule.message) for rule in self.RULES if not rule.holds(self)]
        if broken:
            raise PydanticCustomError(BROKEN_RULES, "a rule is broken", {"broken": broken})
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        if cls.RULES:
            handler.resolve_ref_schema(schema)[VALIDATIONS] = [rule.as_cel() for rule in cls.RULES]
        return schema
