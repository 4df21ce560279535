"""`pagefleet-engine`: can be told to stop from its first moment on; the rest is `pagefleet_engine.process`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 after an ordered stop, 2 for a start-up error, 1 when the engine has failed."""
    # before the imports below: they take a while, and a container's first process ignores a signal without a handler
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave_at_once)
    words = list(sys.argv[1:] if argv is None else argv)
    if words == ["--version"]:
        from importlib.metadata import version

        print(version("pagefleet"))
        return 0
    from pagefleet_engine.process import run_process

    return run_process(words, os.environ)


def _leave_at_once(_number: int, _frame: object) -> None:
    """Nothing is served yet, so nothing has to be ended in order; `StopSignals` takes over later."""
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
