"""`--state-dir`: the runtime configuration as it was last changed, so that a restarted engine goes on with it.

Written whole beside the old one, synced, then renamed: a reader finds the old or the new one, never a part.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from pydantic import ValidationError

from pagefleet_engine.contract.control import RuntimeConfig
from pagefleet_engine.errors import StartupError
from pagefleet_engine.server.schemas import first_problem

log = logging.getLogger(__name__)

NAME = "runtime_config.json"
_MAX_BYTES = 262_144


class StateFile:
    """One folder's file. Methods block on the disk: call them off the event loop."""

    def __init__(self, folder: Path) -> None:
        """Raises `StartupError` when nothing can be kept there."""
        self.path = folder / NAME
        try:
            folder.mkdir(exist_ok=True)
            _sync_folder(folder)
        except OSError as error:
            raise StartupError(f"--state-dir {folder}: {error.strerror}: give a folder that can be written") from None

    def read(self) -> RuntimeConfig | None:
        """None when there is none; one that cannot be used is ignored with a line in the log."""
        try:
            with self.path.open("rb") as file:
                content = file.read(_MAX_BYTES)
            return RuntimeConfig.model_validate_json(content)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("--state-dir: %s is ignored: %s", self.path, error.strerror)
        except ValidationError as error:
            log.warning("--state-dir: %s is ignored: %s", self.path, first_problem(error).body.message)
        return None

    def write(self, config: RuntimeConfig) -> None:
        """Returns once it is on the disk. A disk that refuses costs a line in the log, not the change."""
        new = self.path.with_suffix(".new")
        try:
            with new.open("wb") as file:
                file.write(config.model_dump_json().encode())
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.path)
            _sync_folder(self.path.parent)
        except OSError as error:
            log.warning("--state-dir: generation %d is not kept: %s", config.generation, error.strerror)


def _sync_folder(folder: Path) -> None:
    """Makes a rename in it durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
