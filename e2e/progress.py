"""Long steps that a person waits for: each says what it does, shows that it moves, and says how long it took."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

Say = Callable[[str], None]


@contextmanager
def step(title: str, out: TextIO = sys.stdout) -> Iterator[Say]:
    """Print a title, give the body a `say` for lines under it, then print the seconds it took."""
    began = time.monotonic()
    print(f"==> {title}", file=out, flush=True)

    def say(line: str) -> None:
        print(f"    [{time.monotonic() - began:5.1f} s] {line}", file=out, flush=True)

    yield say
    say("done")
