"""The verdict on a finished answer: does its text hold what was asked for?

The work is bounded by a number of keyword evaluations, not by a clock, and patterns are matched by automata, so neither
a schema nor an answer can hold a thread for long.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NoReturn

import referencing
import referencing.exceptions
from jsonschema import (
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
    FormatChecker,
    SchemaError,
)
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend

from pagefleet_engine.contract.metrics import Outcome
from pagefleet_engine.errors import RequestRefused
from pagefleet_engine.structured.strings import string_fits

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]

QUICK: Final = 200
"""Evaluations that take a few milliseconds."""
THOROUGH: Final = 50_000
"""Evaluations that take about a second."""


_NO_FORMATS: Final = FormatChecker(formats=())
"""The library's own would compile every pattern of a schema with `re`."""

_HALF_PAIR: Final = re.compile(r"\\u[dD][89a-fA-F]")
"""May be half of a surrogate pair, or the whole of one."""


class Undecided(Exception):
    """The allowance of evaluations is used up, or the schema refers to what is not there."""


_DIALECTS: Final[Mapping[str, type[Validator]]] = {
    "https://json-schema.org/draft/2020-12/schema": Draft202012Validator,
    "https://json-schema.org/draft/2019-09/schema": Draft201909Validator,
    "http://json-schema.org/draft-07/schema": Draft7Validator,
    "http://json-schema.org/draft-06/schema": Draft6Validator,
    "http://json-schema.org/draft-04/schema": Draft4Validator,
}


def _dialect(name: Any) -> type[Validator]:
    if name is None:
        return Draft202012Validator
    found = _DIALECTS.get(name.removesuffix("#")) if isinstance(name, str) else None
    if found is None:
        raise RequestRefused("$.$schema: must name one of the drafts 4, 6, 7, 2019-09 and 2020-12")
    return found


class _Allowance(threading.local):
    left = 0


_allowance = _Allowance()


class SchemaCheck:
    """A schema, ready to judge texts from any thread. Raises `RequestRefused` for one that is no JSON schema."""

    def __init__(self, schema: dict[str, Any]) -> None:
        base = _dialect(schema.get("$schema"))
        try:
            base.check_schema(schema, format_checker=_NO_FORMATS)  # type: ignore[call-arg]  # the protocol lacks it
        except SchemaError as error:
            raise RequestRefused(f"{error.json_path}: {error.message[:200]}") from None
        except RecursionError:
            raise RequestRefused("is nested too deeply") from None
        try:
            # An empty registry fetches nothing.
            self._validator: Validator = _bounded(base)(schema, registry=referencing.Registry())
        except ValueError:
            raise RequestRefused("$.$id: is no URI") from None

    def judge(self, text: str, *, allowance: int = THOROUGH) -> Outcome:
        """VALID, INVALID_JSON or SCHEMA_VIOLATION. Raises `Undecided`."""
        try:
            value = parse_json(text)
        except ValueError:
            return Outcome.INVALID_JSON
        return Outcome.VALID if self.fits(value, allowance=allowance) else Outcome.SCHEMA_VIOLATION

    def fits(self, value: Any, *, allowance: int = THOROUGH) -> bool:
        """Whether a JSON value fits. Raises `Undecided`."""
        _allowance.left = allowance
        try:
            return self._validator.is_valid(value)
        except (RecursionError, ValueError, referencing.exceptions.Unresolvable):  # ValueError: an $id is no URI
            raise Undecided from None
        except OverflowError:  # a multiple of a number that no float can hold
            return False


def parse_json(text: str) -> Any:
    """A JSON value whose strings are text.

    Raises ValueError for anything else: NaN, numbers of thousands of digits, deep nesting, half a surrogate pair.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        text.encode()
        if _HALF_PAIR.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("half a surrogate pair is no text") from None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


@lru_cache(maxsize=16)
def _bounded(base: type[Validator]) -> type[Validator]:
    """A dialect whose keywords use up the allowance, and which matches no regular expression by itself."""
    keywords = dict(base.VALIDATORS)
    for name, own in (
        ("pattern", _pattern),
        ("format", _format),
        ("patternProperties", _pattern_properties),
        ("additionalProperties", _additional_properties),
        ("uniqueItems", _unique_items),
        ("unevaluatedProperties", _unchecked),
    ):
        if name in keywords:
            keywords[name] = own
    counted = {name: _counted(keyword) for name, keyword in keywords.items()}
    made: type[Validator] = extend(base, counted)  # type: ignore[no-untyped-call]
    return made


def _counted(keyword: Keyword) -> Keyword:
    def run(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError] | None:
        _allowance.left -= 1
        if _allowance.left < 0:
            raise Undecided
        return keyword(validator, value, instance, schema)

    return run


def _pattern(_validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not string_fits("pattern", pattern, instance):
        yield ValidationError("does not match its pattern")


def _format(_validator: Any, name: str, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not string_fits("format", name, instance):
        yield ValidationError("does not have its format")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, _schema: Any
) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for pattern, schema in patterns.items():
            for key, value in instance.items():
                if string_fits("pattern", pattern, key):
                    yield from validator.descend(value, schema, path=key, schema_path=pattern)


def _unique_items(_validator: Any, wanted: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    """In one pass: the library compares each with each where they cannot be sorted."""
    if wanted is True and isinstance(instance, list):
        distinct = {json.dumps(item, sort_keys=True) for item in instance}
        if len(distinct) < len(instance):
            yield ValidationError("has an item twice")


def _unchecked(_validator: Any, _value: Any, _instance: Any, _schema: Any) -> Iterator[ValidationError]:
    """The library would match the patterns beside it by itself."""
    return iter(())


def _additional_properties(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, value in instance.items():
        if key not in known and not any(string_fits("pattern", pattern, key) for pattern in patterns):
            yield from validator.descend(value, wanted, path=key)
