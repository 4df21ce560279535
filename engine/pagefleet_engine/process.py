"""The engine from its command line to its exit code, and the one line that says why it cannot run."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pagefleet_engine.api import Engine
from pagefleet_engine.contract.arguments import ArgumentError, EngineArguments, parse
from pagefleet_engine.contract.paths import STARTUP_ERROR_EXIT_CODE, TERMINATION_MESSAGE_VARIABLE
from pagefleet_engine.errors import StartupError
from pagefleet_engine.server.drain import StopSignals
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.serve import Ending, serve

log = logging.getLogger("pagefleet_engine")

GC_THRESHOLDS: Final = (10_000, 20, 50)
"""A step makes thousands of small objects that die with it; Python's own 700 would collect several times a step."""


def run_process(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Exit code: 0 after an ordered stop, 2 for a start-up error, 1 when the engine has failed."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with asyncio.Runner() as runner:
        try:
            ending = runner.run(_run(parse(words), environ))
        except (ArgumentError, StartupError) as error:
            return give_up(str(error), environ)
        log.info("%s", ending.reason)
        if ending.exit_code:
            _leave_message(ending.reason, environ)
        if not ending.clean:  # some thread would hold up, or not survive, an orderly end of the interpreter
            logging.shutdown()
            os._exit(ending.exit_code)
    return ending.exit_code


def give_up(message: str, environ: Mapping[str, str]) -> int:
    """Say why the engine cannot run, once for people and once for whoever started the container."""
    line = " ".join(message.split())
    print(f"pagefleet-engine: {line}", file=sys.stderr)
    _leave_message(line, environ)
    return STARTUP_ERROR_EXIT_CODE


def _leave_message(line: str, environ: Mapping[str, str]) -> None:
    path = environ.get(TERMINATION_MESSAGE_VARIABLE)
    if not path:
        return
    try:
        Path(path).write_text(line + "\n", encoding="utf-8")
    except OSError as error:
        log.warning("%s=%s: %s", TERMINATION_MESSAGE_VARIABLE, path, error.strerror)


async def _run(arguments: EngineArguments, environ: Mapping[str, str]) -> Ending:
    signals = StopSignals()
    signals.install(asyncio.get_running_loop())
    return await serve(arguments, load=_load, limits=Limits(), signals=signals, environ=environ)


async def _load(arguments: EngineArguments) -> Engine:
    # torch takes seconds to import: probes are answered meanwhile
    module = await asyncio.to_thread(importlib.import_module, "pagefleet_engine.async_engine")
    engine: Engine = await module.start_engine(arguments)
    settle_heap()
    return engine


def settle_heap() -> None:
    """What lives after the start stays alive, so no collection has to walk over it again.

    A full collection over the modules and the model stops every thread, the step loop among them, for tens of
    milliseconds. Afterwards it sees what requests have left, and comes less often.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
