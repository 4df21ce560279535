"""Where the model behind `--model` lies: here already, or on a hub. What is here always wins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pagefleet_engine.contract.hub import SCHEME, HubModel, parse_hub_uri, try_hub_name
from pagefleet_engine.errors import StartupError


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """A model on this machine."""

    path: str
    """A file or a folder."""
    hub_name: str | None = None
    """`owner/name`, where it came from a hub."""


def resolve_model(model: str) -> LocalModel:
    """Find the model, downloading it if need be. Raises `StartupError` that names the flag and the remedy."""
    if exists(model):
        return LocalModel(path=model)
    hub = _hub_model(model)
    if hub is None:
        raise StartupError(f"--model {model}: no such file or folder")
    from pagefleet_engine.weights.hub import HubError, fetch  # only who downloads pays for the client library

    try:
        return LocalModel(path=str(fetch(hub)), hub_name=hub.repo_id)
    except HubError as error:
        here = "" if model.startswith(SCHEME) else "no such file or folder, and "
        raise StartupError(f"--model {model}: {here}{error}") from error


def exists(model: str) -> bool:
    """Whether there is such a file or folder. Raises `StartupError` where even asking fails."""
    try:
        return Path(model).exists()
    except OSError as error:
        raise StartupError(f"--model {model[:80]}: {error.strerror or error}") from error


def _hub_model(model: str) -> HubModel | None:
    if not model.startswith(SCHEME):
        return try_hub_name(model)
    try:
        return parse_hub_uri(model)
    except ValueError as error:
        raise StartupError(f"--model {error}") from error
