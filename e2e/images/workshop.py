"""What the builds of one call share: builder, base image, torch, pip's configuration. One build at a time per cache."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.cluster.errors import MissingError
from e2e.cluster.facts import find_program, install_packages
from e2e.cluster.folders import user_folders
from e2e.cluster.processes import DEFAULT_PATH
from e2e.images.archive import Shelf
from e2e.images.base import ensure_base
from e2e.images.builders import DockerLike, ImageBuilder, open_buildah, working_builders
from e2e.images.commands import Builder, choose_builder
from e2e.images.inputs import (
    TorchBuild,
    choose_torch,
    digest_inputs,
    hash_file,
    pinned_torch,
    project_version,
    wheels_offered,
)
from e2e.images.pipconfig import read_pip_config
from e2e.images.targets import ImageError, Target
from e2e.progress import Say

ROOT: Final = Path(__file__).parent.parent.parent
DEBIAN_PACKAGES: Final = ("buildah", "debootstrap")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """Everything that the images of one call have in common."""

    builder: ImageBuilder
    folder: Path
    """Archives and logs."""
    base: str | None
    base_digest: str
    version: str
    torch: TorchBuild
    torch_digest: str
    secrets: Mapping[str, Path]
    say: Say

    def shelf(self, target: Target) -> Shelf:
        return Shelf(folder=self.folder / target)

    def log(self, target: Target) -> Path:
        return self.folder / f"{target}.log"

    def tag(self, target: Target) -> str:
        """From everything that goes into the image."""
        others = {"base": self.base_digest, "version": self.version}
        if target.holds_torch:
            others["torch"] = f"{self.torch.version} {self.torch_digest}"
        return digest_inputs(ROOT, target, others)[:12]


@contextmanager
def open_workshop(say: Say) -> Iterator[Workshop]:
    """One build at a time per cache: a second one waits."""
    environ = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{DEFAULT_PATH}"}
    cache = user_folders().cache
    folder = cache / "images"
    folder.mkdir(parents=True, exist_ok=True)
    version = project_version((ROOT / "pyproject.toml").read_text())
    pinned = pinned_torch((ROOT / "requirements" / "torch.txt").read_text())
    torch = choose_torch(pinned, platform.machine(), wheels_offered(environ.get("PIP_FIND_LINKS", "")))
    with locked(folder / "lock", say), scratch_folder(folder) as scratch:
        builder, base, base_digest = open_builder(cache, scratch, say, environ)
        yield Workshop(
            builder=builder, folder=folder, base=base, base_digest=base_digest, version=version, torch=torch, say=say,
            torch_digest=hash_file(torch.wheel) if torch.wheel else "registry",
            secrets=read_pip_config(environ).write_secrets(scratch),
        )  # fmt: skip


def open_builder(cache: Path, scratch: Path, say: Say, environ: dict[str, str]) -> tuple[ImageBuilder, str | None, str]:
    """The builder, the base image for it (None: the Containerfile's) and what identifies that base."""
    own_base = environ.get("BASE") or None
    can_install = os.geteuid() == 0 and find_program("apt-get") is not None
    chosen = choose_builder(environ.get("ENGINE"), working_builders(environ), can_install)
    if chosen is not Builder.BUILDAH:
        return DockerLike(program=chosen, environ=environ), own_base, own_base or "default"
    install_missing(say)
    builder = open_buildah(cache / "containers", scratch, environ)
    if own_base:
        return builder, own_base, own_base
    rootfs = ensure_base(cache / "base", cache / "images" / "base.log", say, environ)
    digest = hash_file(rootfs)
    ref = f"localhost/pagefleet/base:{digest[:12]}"
    if not builder.has(ref):
        builder.import_base(rootfs, ref)
    return builder, ref, digest


def install_missing(say: Say) -> None:
    """The Debian packages that building needs, where this machine lacks them. Raises `ImageError`."""
    try:
        install_packages(tuple(package for package in DEBIAN_PACKAGES if not find_program(package)), say)
    except MissingError as error:
        raise ImageError(str(error)) from None


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A private folder for this build; what a killed one left goes too."""
    for leftover in parent.glob("scratch-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix="scratch-") as folder:
        yield Path(folder)


@contextmanager
def locked(path: Path, say: Say) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build is running: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
