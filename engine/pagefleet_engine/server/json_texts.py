"""JSON inside the strings of a request: the same rules as for the body around it. Pure."""

from __future__ import annotations

from typing import Any

from pagefleet_engine.server.errors import invalid
from pagefleet_engine.server.json_shape import check_shape, holds_more_values
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.structured.verdicts import parse_json


class JsonTexts:
    """Reads the texts of one request, whose size is bounded together: many small ones take as long as a large one."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._num_chars = 0

    def parse(self, text: str, *, param: str, expects: str) -> Any:
        """The value. Raises `ApiError`, with `expects` as the reason where the text is no JSON."""
        limits = self._limits
        self._num_chars += len(text)
        if self._num_chars > limits.json_text_chars:
            message = f"{param}: JSON inside strings may have {limits.json_text_chars} characters in all"
            raise invalid(message, param=param, code="json_too_large")
        if holds_more_values(text.encode(errors="replace"), limits.json_text_nodes):
            message = f"{param}: holds more than {limits.json_text_nodes} values"
            raise invalid(message, param=param, code="json_too_large")
        try:
            value = parse_json(text)
        except ValueError:
            raise invalid(f"{param}: {expects}", param=param) from None
        if isinstance(value, dict | list):
            check_shape(value, limits, what=f"{param}:", param=param)
        return value
