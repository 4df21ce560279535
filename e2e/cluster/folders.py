"""Where things are kept outside the repository. Pure: the environment is an argument."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """What was built, and what runs."""

    cache: Path
    """Built programs, by digest. Safe to delete while no cluster runs."""
    state: Path
    """The cluster's configuration, logs, API data and images."""

    @property
    def tools(self) -> Path:
        """One folder per built Go module."""
        return self.cache / "tools"


def find_folders(environ: Mapping[str, str], home: Path) -> Folders:
    """PAGEFLEET_CACHE and PAGEFLEET_STATE, else the XDG folders, else their defaults under home."""

    def base(own: str, xdg: str, default: str) -> Path:
        if environ.get(own):
            return Path(environ[own])
        return Path(environ[xdg] if environ.get(xdg) else home / default) / "pagefleet"

    cache = base("PAGEFLEET_CACHE", "XDG_CACHE_HOME", ".cache")
    state = base("PAGEFLEET_STATE", "XDG_STATE_HOME", ".local/state")
    return Folders(cache=cache.absolute(), state=state.absolute() / "cluster")


def find_hidden_folder(folders: Folders) -> Path | None:
    """The first folder that the cluster could not see, because it has its own /run, /var/lib and /var/log."""
    hiding = (Path("/run"), Path("/var/run"), Path("/var/lib"), Path("/var/log"))
    return next((path for path in (folders.cache, folders.state) if any(map(path.is_relative_to, hiding))), None)


def user_folders() -> Folders:
    """Those of this process."""
    return find_folders(os.environ, Path.home())
