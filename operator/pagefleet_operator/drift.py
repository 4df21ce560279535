"""What has to change in a living object so that it says what its manifest says.

Fields that the manifest does not have belong to the API server or to somebody else and stay, with one exception: a
selector is compared as a whole, because an extra label in it would select nothing.
"""

from __future__ import annotations

from typing import Any, Final

from pagefleet_operator.resources import Object

WHOLE: Final = frozenset({"selector", "matchLabels"})
CREATE_ONLY: Final = frozenset({"apiVersion", "kind", "status"})


def find_drift(live: Object, wanted: Object) -> Object | None:
    """A JSON merge patch with its preconditions, or None when nothing differs."""
    relevant = {key: value for key, value in wanted.items() if key not in CREATE_ONLY}
    patch = _difference(live, relevant)
    if not patch:
        return None
    identity = {name: live["metadata"][name] for name in ("uid", "resourceVersion")}
    return patch | {"metadata": patch.get("metadata", {}) | identity}


def _difference(live: Object, wanted: Object) -> Object:
    patch: Object = {}
    for key, value in wanted.items():
        there = live.get(key)
        if isinstance(value, dict) and isinstance(there, dict):
            nested = _difference(there, value)
            if key in WHOLE:
                nested |= {extra: None for extra in there.keys() - value.keys()}
            if nested:
                patch[key] = nested
        elif not _says(there, value):
            patch[key] = value
    return patch


def _says(live: Any, wanted: Any) -> bool:
    """Whether `live` holds everything that `wanted` does; lists must have the same length."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(_says(live.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(live, list) and len(live) == len(wanted) and all(map(_says, live, wanted))
    return bool(live == wanted)
