"""Build the cluster's programs once per version, into a cache outside the repository, and verify them before use.

A build goes into a temporary folder that is renamed when complete, so an interrupted one leaves nothing half-made.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ToolBuildError
from e2e.cluster.folders import Folders
from e2e.cluster.golang import Go, provide_go
from e2e.cluster.modules import (
    COMPILER_ENVIRONMENT,
    GO_ENVIRONMENT,
    MODULES,
    SOURCES,
    Module,
    compute_digest,
    select_modules,
)

Say = Callable[[str], None]
MANIFEST = "sha256.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Paths of the built programs."""

    folder: Path
    """A folder with a link to every program, for PATH; its name changes when any program does."""
    paths: dict[str, Path]

    def __getitem__(self, name: str) -> Path:
        return self.paths[name]

    @property
    def kubectl(self) -> Path:
        return self.paths["kubectl"]

    @property
    def helm(self) -> Path:
        return self.paths["helm"]

    @property
    def ctr(self) -> Path:
        return self.paths["ctr"]


def build_tools(folders: Folders, names: Iterable[str] | None, say: Say) -> Tools:
    """The named modules' programs (None: the cluster's), built where the cache lacks them. Raises `ToolBuildError`."""
    modules = MODULES if names is None else select_modules(names)
    folders.tools.mkdir(parents=True, exist_ok=True)
    with hold_lock(folders.tools / "lock", say):
        go = provide_go(folders.cache, [module.path for module in modules], say)
        built = {module.name: provide_module(folders, module, go, say) for module in modules}
        paths = {name: built[module.name] / name for module in modules for name in module.binaries}
        return Tools(folder=link_programs(folders.cache / "bin", paths), paths=paths)


@contextlib.contextmanager
def hold_lock(path: Path, say: Say) -> Iterator[None]:
    """Hold an exclusive file lock; the kernel drops it when the process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that holds {path}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def provide_module(folders: Folders, module: Module, go: Go, say: Say) -> Path:
    """The verified folder with a module's programs, built now if need be."""
    sources = {name: (module.path / name).read_bytes() for name in SOURCES if (module.path / name).is_file()}
    folder = folders.tools / f"{module.name}-{compute_digest(sources, go.version, module)}"
    if folder.is_dir():
        verify(folder)
        return folder
    began = time.monotonic()
    say(f"building {module.name} ({', '.join(module.binaries)})")
    build(module, go, folder)
    say(f"built {module.name} in {time.monotonic() - began:.0f} s")
    return folder


def build(module: Module, go: Go, target: Path) -> None:
    """Run `go build` for one module; `target` appears only when everything is there."""
    for abandoned in target.parent.glob(f".{module.name}-*.partial"):
        shutil.rmtree(abandoned)
    partial = Path(tempfile.mkdtemp(prefix=f".{module.name}-", suffix=".partial", dir=target.parent))
    try:
        argv = (str(go.path), "build", *module.build_flags, "-o", f"{partial}/", *module.binaries.values())
        environ = {**os.environ, **GO_ENVIRONMENT, **COMPILER_ENVIRONMENT}  # proxy and cache settings are the user's
        result = subprocess.run(argv, cwd=module.path, env=environ, capture_output=True, text=True, check=False)
        if result.returncode:
            last_lines = "\n".join(result.stderr.splitlines()[-15:])
            raise ToolBuildError(f"go build of {module.name} failed:\n{last_lines}")
        name_programs(module, partial)
        sums = {name: sha256_of(partial / name) for name in module.binaries}
        (partial / MANIFEST).write_text(json.dumps(sums, indent=1))
        partial.chmod(0o755)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def name_programs(module: Module, folder: Path) -> None:
    """Go names a program after its package's or module's last word; `server` is to be `etcd`."""
    made = sorted(path.name for path in folder.iterdir())
    if made == sorted(module.binaries):
        return
    if len(made) == len(module.binaries) == 1:
        (folder / made[0]).rename(folder / next(iter(module.binaries)))
        return
    raise ToolBuildError(f"go build of {module.name} made {made}, not {sorted(module.binaries)}")


def verify(folder: Path) -> None:
    """Compare the programs with the manifest written when they were built."""
    sums: dict[str, str] = json.loads((folder / MANIFEST).read_text())
    for name, expected in sums.items():
        if not (folder / name).is_file() or sha256_of(folder / name) != expected:
            raise ToolBuildError(f"{folder / name} is not what was built; delete {folder} to build it again")


def sha256_of(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def link_programs(parent: Path, paths: dict[str, Path]) -> Path:
    """A folder of links to the programs. Another build of any of them gets another folder."""
    digest = hashlib.sha256("\n".join(f"{paths[name]}" for name in sorted(paths)).encode()).hexdigest()[:12]
    folder = parent / digest
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in paths.items():
        with contextlib.suppress(FileExistsError):
            (folder / name).symlink_to(path)
    return folder
