"""Models by their name on a hub: `hf://owner/name[@revision][/file.gguf]`, and the short form `owner/name[@revision]`.

Only what the names look like; whether such a model exists, and where it lies, is for the engine to find out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

SCHEME: Final = "hf://"
FORM: Final = "hf://owner/name, hf://owner/name@revision or hf://owner/name/file.gguf"
_NAME: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_REVISION: Final = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
URI_PATTERN: Final = rf"hf://{_NAME}/{_NAME}(?:@{_REVISION})?(?:(?:/[^/\s?#@]+)*/[^/\s?#@]+\.gguf)?"
"""A regular expression without look-around, so that Kubernetes can evaluate it too."""
_PARTS: Final = re.compile(rf"(?P<repo>{_NAME}/{_NAME})(?:@(?P<revision>{_REVISION}))?(?:/(?P<file>\S+\.gguf))?")
_FILES: Final = (".gguf", ".safetensors", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel:
    """One model on a hub."""

    repo_id: str
    """`owner/name`."""
    revision: str | None = None
    """A branch, a tag or a commit. None: the hub's default branch."""
    file: str | None = None
    """A GGUF file inside, where there are several."""


def parse_hub_uri(text: str) -> HubModel:
    """`hf://…` in its parts. Raises `ValueError` with one sentence for anything else."""
    if re.fullmatch(URI_PATTERN, text):
        found = _parts(text.removeprefix(SCHEME))
        if found is not None:
            return found
    raise ValueError(f"{text!r} names no model on a hub: write {FORM}")


def try_hub_name(text: str) -> HubModel | None:
    """`owner/name` or `owner/name@revision`; None for what looks like a path or is neither."""
    if text.endswith(_FILES):
        return None
    return _parts(text)


def _parts(text: str) -> HubModel | None:
    match = _PARTS.fullmatch(text)
    if match is None or re.search(r"--|\.\.", match["repo"]) or {".", ".."} & set((match["file"] or "").split("/")):
        return None
    return HubModel(repo_id=match["repo"], revision=match["revision"], file=match["file"])
