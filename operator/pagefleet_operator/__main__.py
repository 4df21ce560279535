"""The command `pagefleet-operator`. A signal ends it from the first moment on, before the slow imports.

As PID 1 of a container a process without a handler does not notice SIGTERM at all. Nothing is held or half done before
`main` installs its own handlers, so until then the process just ends.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import FrameType


def main() -> int:
    """See `pagefleet_operator.main.main`, which is loaded only here."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    return int(importlib.import_module("pagefleet_operator.main").main())


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
