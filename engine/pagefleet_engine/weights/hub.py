"""Edge to the Hugging Face hub: a model's files come into the cache below `HF_HOME`, or are found there.

The client library reads its environment (`HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE`) when it is imported.
A hub that cannot be reached is no error while the cache holds the whole model.
"""

from __future__ import annotations

import errno
import glob
import logging
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx2
from huggingface_hub import HfApi, constants, get_cached_repo_tree, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    CachedRepoTreeNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars

from pagefleet_engine.contract.hub import HubModel
from pagefleet_engine.weights.choice import model_files

log = logging.getLogger(__name__)

_LOOK_UP_TIMEOUT_S = 30.0


class HubError(Exception):
    """Why a model cannot be had from the hub, and what to do about it, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """Where models come from and where they are kept."""

    endpoint: str = constants.ENDPOINT
    cache: str = constants.HF_HUB_CACHE
    token: str | None = None
    """None: what the client library finds, in `HF_TOKEN` or in a file."""

    @property
    def api(self) -> HfApi:
        return HfApi(endpoint=self.endpoint, token=self.token, library_name="pagefleet")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """What a repository holds."""

    sizes: Mapping[str, int]
    """Bytes by file name; of a file that was never asked for, 0."""
    commit: str | None
    """None: the hub cannot be reached, and this is what the cache remembers."""


def fetch(model: HubModel, hub: Hub | None = None) -> Path:
    """The model's folder, or its GGUF file, on this machine. Blocking; may take hours. Raises `HubError`."""
    hub = hub or Hub()
    try:
        return _fetch(model, hub)
    except (httpx2.HTTPError, OSError) as error:  # the library's own errors are one or the other
        raise HubError(explain(error, model, hub)) from error
    except ValueError as error:
        raise HubError(f"{model.repo_id} cannot be loaded from the hub: {error}") from error


def _fetch(model: HubModel, hub: Hub) -> Path:
    if not sys.stderr.isatty():
        disable_progress_bars()
    listing = _list(model, hub)
    names = model_files(listing.sizes, model.file)
    if listing.commit is not None:
        _make_room(
            model, hub, {name: listing.sizes[name] for name in names if not _is_cached(model, hub, listing, name)}
        )
    folder = snapshot_download(
        model.repo_id,
        revision=model.revision,
        allow_patterns=[glob.escape(name) for name in names],
        local_files_only=listing.commit is None,
        cache_dir=hub.cache,
        endpoint=hub.endpoint,
        token=hub.token,
        library_name="pagefleet",
    )
    return Path(folder, names[0]) if names[0].endswith(".gguf") else Path(folder)


def _list(model: HubModel, hub: Hub) -> _Listing:
    try:
        info = hub.api.model_info(
            model.repo_id, revision=model.revision, files_metadata=True, timeout=_LOOK_UP_TIMEOUT_S
        )
    except (httpx2.TransportError, OfflineModeIsEnabled) as error:
        log.warning("%s; looking for %s in %s", _unreachable(error, hub), model.repo_id, hub.cache)
        try:
            tree = get_cached_repo_tree(model.repo_id, revision=model.revision, cache_dir=hub.cache)
        except CachedRepoTreeNotFoundError:
            raise error from None
        return _Listing(sizes={file.path: 0 for file in tree}, commit=None)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    return _Listing(sizes=sizes, commit=info.sha)


def _is_cached(model: HubModel, hub: Hub, listing: _Listing, name: str) -> bool:
    found = try_to_load_from_cache(model.repo_id, name, cache_dir=hub.cache, revision=listing.commit)
    return isinstance(found, str)


def _make_room(model: HubModel, hub: Hub, missing: Mapping[str, int]) -> None:
    """Said before hours of download, with the numbers. Raises `HubError`, or `OSError` for a folder that is none."""
    if not missing:
        return
    Path(hub.cache).mkdir(parents=True, exist_ok=True)
    needed, free = sum(missing.values()), shutil.disk_usage(hub.cache).free
    if needed > free:
        raise HubError(
            f"{model.repo_id} takes {needed} more bytes in {hub.cache}, and {free} are free: "
            "set HF_HOME to a folder on a larger volume"
        )
    log.info("downloading %d files, %d bytes, of %s to %s", len(missing), needed, model.repo_id, hub.cache)


def explain(error: Exception, model: HubModel, hub: Hub) -> str:
    """One sentence for whatever the hub, the network or the disk did."""
    name, said = model.repo_id, f"the hub at {hub.endpoint}"
    match error:
        case GatedRepoError():
            return f"{said} gives {name} to those who have accepted its terms: accept them there, and set HF_TOKEN"
        case RevisionNotFoundError():
            return f"{said} has no revision {model.revision} of {name}: name a branch, a tag or a commit"
        case RepositoryNotFoundError():
            return f"{said} knows no model {name}: correct the name, or set HF_TOKEN if it is private"
        case HfHubHTTPError() if error.response.status_code in (401, 403):
            return f"{said} refuses {name} with {error.response.status_code}: set HF_TOKEN to a token that may read it"
        case HfHubHTTPError():
            return f"{said} answers {error.response.status_code} for {name}: try again later"
        case OfflineModeIsEnabled() | httpx2.HTTPError() | LocalEntryNotFoundError():
            return (
                f"{_unreachable(error, hub)}, and {hub.cache} does not hold all of {name}: "
                "check network, proxy and HF_ENDPOINT, or give a local path"
            )
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return f"the disk is full at {hub.cache}: set HF_HOME to a folder on a larger volume"
    reason = getattr(error, "strerror", None) or type(error).__name__
    return f"{hub.cache} cannot be used for {name} ({reason}): set HF_HOME to a folder that can be written"


def _unreachable(error: Exception, hub: Hub) -> str:
    if isinstance(error, OfflineModeIsEnabled) or constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set"
    cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else error
    why = f" ({type(cause).__name__})" if cause is not None else ""
    return f"the hub at {hub.endpoint} cannot be reached{why}"
