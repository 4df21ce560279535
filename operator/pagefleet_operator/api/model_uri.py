"""Model URIs, parsed: which scheme, and what it names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pagefleet_engine.contract.hub import FORM, SCHEME, parse_hub_uri


class ModelScheme(StrEnum):
    """How a model reaches the engine."""

    FILE = "file"
    PVC = "pvc"
    HF = "hf"
    OCI = "oci"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model URI in its parts."""

    scheme: ModelScheme
    authority: str
    """The claim of pvc, the owner of hf, the registry of oci; empty for file."""
    path: str
    """An absolute path for file and pvc (`/` is the claim's root), a relative name for the others; of hf, with the
    revision and the file, if any."""


_SEGMENTS: Final = r"(?:/[^/\s?#]+)"
_URI: Final = re.compile(
    rf"^(?:(?P<file>file)://(?P<path>{_SEGMENTS}+)/?"
    rf"|(?P<pvc>pvc)://(?P<claim>[a-z0-9](?:[-.a-z0-9]*[a-z0-9])?)(?P<inside>{_SEGMENTS}*)/?"
    rf"|(?P<remote>oci)://(?P<host>[^/\s?#]+)(?P<name>{_SEGMENTS}+))$"
)


def parse_model_uri(text: str) -> ModelSource:
    """Raises `ValueError` with one sentence for anything that is no model URI."""
    if text.startswith(SCHEME):
        parse_hub_uri(text)
        owner, _, name = text.removeprefix(SCHEME).partition("/")
        return ModelSource(scheme=ModelScheme.HF, authority=owner, path=name)
    match = _URI.fullmatch(text)
    if match is None or {".", ".."} & set(text.split("://", 1)[1].split("/")):
        raise ValueError(f"{text!r} is no model URI: write file:///path, pvc://claim/path, {FORM}, or oci://…")
    if match["file"]:
        return ModelSource(scheme=ModelScheme.FILE, authority="", path=match["path"])
    if match["pvc"]:
        return ModelSource(scheme=ModelScheme.PVC, authority=match["claim"], path=match["inside"] or "/")
    return ModelSource(scheme=ModelScheme(match["remote"]), authority=match["host"], path=match["name"][1:])


def is_model_uri(text: str) -> bool:
    """Whether `parse_model_uri` accepts it."""
    try:
        parse_model_uri(text)
    except ValueError:
        return False
    return True
