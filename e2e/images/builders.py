"""The builders themselves: buildah with a storage of its own in the cache, or the machine's docker or podman."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from e2e.cluster.facts import find_program
from e2e.images.archive import pack_layout
from e2e.images.commands import Builder, BuildRequest, build_arguments, skips_tls
from e2e.images.process import APART, capture, run_logged, succeeds
from e2e.progress import Say

PROBE_TIMEOUT_S = 15.0


class ImageBuilder(Protocol):
    """What `build` needs of a builder. Every method raises `ImageError`."""

    def has(self, ref: str) -> bool: ...

    def build(self, request: BuildRequest, log: Path, say: Say) -> None: ...

    def save(self, names: Sequence[str], archive: Path) -> str:
        """Write an archive with these names of one image; the image's digest."""
        ...

    def push(self, ref: str, remote: str, log: Path, say: Say) -> None: ...

    def forget(self, refs: Sequence[str]) -> None:
        """Remove references, and the layers that nothing else uses."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Buildah:
    """As root, with the packages of this machine."""

    storage: Path
    scratch: Path
    """For run-time state; deleted by whoever made it."""
    driver: str
    environ: Mapping[str, str]

    def command(self, *words: str) -> list[str]:
        options = [f"--root={self.storage}", f"--runroot={self.scratch / 'run'}", f"--storage-driver={self.driver}"]
        return [*APART, "buildah", *options, *words]

    def has(self, ref: str) -> bool:
        return succeeds(self.command("inspect", "--type", "image", ref), self.environ)

    def build(self, request: BuildRequest, log: Path, say: Say) -> None:
        capture(self.command("rm", "--all"), self.environ)  # what an interrupted build left
        options = ["--isolation", "chroot", "--network", "host", "--layers", "--format", "oci"]
        run_logged(self.command("build", *options, *build_arguments(request)), log, say, self.environ)

    def import_base(self, rootfs: Path, ref: str) -> None:
        """Make a one-layer image of a tar file."""
        container = capture(self.command("from", "scratch"), self.environ)
        capture(self.command("add", "--quiet", container, str(rootfs), "/"), self.environ)
        capture(self.command("commit", "--quiet", "--rm", "--format", "oci", container, ref), self.environ)

    def save(self, names: Sequence[str], archive: Path) -> str:
        options = ["--quiet", "--format", "oci", "--disable-compression"]
        return save_layout(self.command("push", *options, names[0]), names, archive, self.environ)

    def push(self, ref: str, remote: str, log: Path, say: Say) -> None:
        tls = ["--tls-verify=false"] if skips_tls(remote) else []
        run_logged(self.command("push", "--format", "oci", *tls, ref, f"docker://{remote}"), log, say, self.environ)

    def forget(self, refs: Sequence[str]) -> None:
        for ref in refs:
            succeeds(self.command("rmi", ref), self.environ)


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerLike:
    """docker or podman, with the user's own storage; only references below `pagefleet/` are touched."""

    program: Builder
    environ: Mapping[str, str]

    def has(self, ref: str) -> bool:
        return succeeds([self.program, "image", "inspect", ref], self.environ)

    def build(self, request: BuildRequest, log: Path, say: Say) -> None:
        progress = ["--progress", "plain"] if self.program is Builder.DOCKER else []
        run_logged([self.program, "build", *progress, *build_arguments(request)], log, say, self.environ)

    def save(self, names: Sequence[str], archive: Path) -> str:
        if self.program is Builder.PODMAN:
            options = ["--quiet", "--format", "oci"]
            return save_layout([self.program, "push", *options, names[0]], names, archive, self.environ)
        capture([self.program, "save", "--output", str(archive), *names], self.environ)
        image_id = capture([self.program, "image", "inspect", "--format", "{{.Id}}", names[0]], self.environ)
        return image_id if image_id.startswith("sha256:") else f"sha256:{image_id}"

    def push(self, ref: str, remote: str, log: Path, say: Say) -> None:
        capture([self.program, "tag", ref, remote], self.environ)
        run_logged([self.program, "push", remote], log, say, self.environ)

    def forget(self, refs: Sequence[str]) -> None:
        for ref in refs:
            succeeds([self.program, "image", "rm", ref], self.environ)


def save_layout(push: Sequence[str], names: Sequence[str], archive: Path, environ: Mapping[str, str]) -> str:
    """An archive of what the command pushes into a folder; the manifest's digest.

    Its layers stay uncompressed: they are imported on this machine, where unpacking costs more than reading.
    """
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix="unfinished-") as folder:
        capture([*push, f"dir:{folder}"], environ)
        with archive.open("wb") as out:
            return pack_layout(Path(folder), names, out)


def working_builders(environ: Mapping[str, str]) -> set[Builder]:
    """Those that can build here: buildah needs root for its storage, the others must answer."""
    found = {
        builder
        for builder in (Builder.DOCKER, Builder.PODMAN)
        if find_program(builder) and succeeds([builder, "info"], environ, PROBE_TIMEOUT_S)
    }
    if os.geteuid() == 0 and find_program(Builder.BUILDAH):
        found.add(Builder.BUILDAH)
    return found


def open_buildah(storage: Path, scratch: Path, environ: Mapping[str, str]) -> Buildah:
    """With the overlay driver where the file system below the cache can carry it, else with plain copies."""
    overlay = Buildah(storage=storage, scratch=scratch, driver="overlay", environ=environ)
    if succeeds(overlay.command("info"), environ):
        return overlay
    return Buildah(storage=storage, scratch=scratch, driver="vfs", environ=environ)
