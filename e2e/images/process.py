"""Run the builders' commands: quietly for an answer, or with a log file and a line of progress per step."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from e2e.images.targets import ImageError
from e2e.progress import Say

STEP: Final = re.compile(
    r"^(?:\[\d+/\d+\] )?STEP \d+/\d+: (?P<step>(?:RUN|COPY) .*)|^#\d+ \[.*\] (?P<kit>(?:RUN|COPY) .*)"
)
TOLD: Final = re.compile(r"^(?:#\d+ [\d.]+ )?(torch (?:build|imports): .*)")
SHOWN_CHARACTERS: Final = 90
APART: Final = ("setpriv", "--pdeathsig", "TERM", "unshare", "--mount")
"""Before a command: it has its own mounts and ends with us, so a killed build leaves neither mounts nor processes."""


def progress_line(line: str) -> str | None:
    """What a person sees of a builder's line of output; None for most of them."""
    if told := TOLD.match(line):
        return told.group(1)
    step = STEP.match(line)
    if step is None:
        return None
    words = [word for word in (step["step"] or step["kit"]).split() if not word.startswith(("--mount=", "--from="))]
    return " ".join(words)[:SHOWN_CHARACTERS]


def run_logged(argv: Sequence[str], log: Path, say: Say, environ: Mapping[str, str]) -> None:
    """Output to `log` (added to what it holds), steps to `say`. Raises `ImageError` with the end of the output."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("a", encoding="utf-8") as file,
        subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=dict(environ)
        ) as process,
    ):
        file.write(f"$ {' '.join(argv)}\n")
        for line in process.stdout or ():
            file.write(line)
            if shown := progress_line(line):
                say(shown)
    if process.returncode:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:]
        raise ImageError("\n".join([f"{describe(argv)} failed ({process.returncode}); whole output: {log}", *tail]))


def capture(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Standard output, without the line's end. Raises `ImageError` with standard error."""
    done = subprocess.run(argv, check=False, capture_output=True, text=True, env=dict(environ))
    if done.returncode:
        raise ImageError(f"{describe(argv)} failed ({done.returncode}): {done.stderr.strip()[-400:]}")
    return done.stdout.strip()


def succeeds(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float | None = None) -> bool:
    """Whether the command is there and ends with 0 in time."""
    try:
        return (
            subprocess.run(argv, check=False, capture_output=True, env=dict(environ), timeout=timeout_s).returncode == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


def describe(argv: Sequence[str]) -> str:
    """The program and its sub-command."""
    own = argv[len(APART) :] if tuple(argv[: len(APART)]) == APART else argv
    return " ".join([Path(word).name for word in own if not word.startswith("-")][:2])
