"""What the command `pagefleet-operator` does: flags, logging, signals, exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pagefleet_operator.alert_server import read_token
from pagefleet_operator.errors import OperatorError
from pagefleet_operator.logs import configure_logging
from pagefleet_operator.process import run
from pagefleet_operator.settings import OperatorSettings, parse_settings

logger = logging.getLogger("pagefleet_operator")


def main(argv: Sequence[str] | None = None) -> int:
    """0 after a signal, 1 when the lease is lost or the process cannot go on, 2 for bad flags."""
    try:
        settings = parse_settings(sys.argv[1:] if argv is None else argv, os.environ)
        if settings.alert_token_file is not None:
            read_token(Path(settings.alert_token_file))
    except ValueError as error:
        print(f"pagefleet-operator: {error}", file=sys.stderr)
        return 2
    configure_logging(settings.log_format)
    try:
        asyncio.run(_until_signal(settings))
    except (OperatorError, OSError) as error:
        logger.error("%s", error)
        return 1
    return 0


async def _until_signal(settings: OperatorSettings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await run(settings, os.environ, stop)
