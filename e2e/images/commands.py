"""Which builder to use, and its command lines. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from e2e.images.inputs import TorchBuild
from e2e.images.targets import ImageError, Target


class Builder(StrEnum):
    """A program that builds images from a Containerfile; in the order in which they are preferred."""

    BUILDAH = "buildah"
    DOCKER = "docker"
    PODMAN = "podman"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """One image to build."""

    root: Path
    """The repository."""
    target: Target
    base: str | None
    """None: the Containerfile's default."""
    version: str
    torch: TorchBuild
    tags: tuple[str, ...]
    secrets: Mapping[str, Path]
    """Secret id -> file."""


def choose_builder(wanted: str | None, working: Collection[Builder], can_install: bool) -> Builder:
    """The wanted one, else the first that works, else buildah where it can be installed. Raises `ImageError`."""
    if wanted and wanted not in [*map(str, Builder)]:
        raise ImageError(f"ENGINE={wanted}: choose from {', '.join(Builder)}")
    if wanted:
        builder = Builder(wanted)
        if builder in working or (builder is Builder.BUILDAH and can_install):
            return builder
        raise ImageError(f"ENGINE={wanted}: it does not work here ({wanted} is missing, or not reachable by this user)")
    for builder in Builder:
        if builder in working:
            return builder
    if can_install:
        return Builder.BUILDAH
    raise ImageError(
        "nothing here builds images: start docker or podman, or as root: apt-get install buildah debootstrap"
    )


def build_arguments(request: BuildRequest) -> list[str]:
    """The options that docker, podman and buildah share, then the build context."""
    arguments = ["--file", str(request.root / "Containerfile"), "--target", str(request.target)]
    values = {"VERSION": request.version}
    if request.base is not None:
        values["BASE"] = request.base
    if request.target.holds_torch:
        values["TORCH"] = request.torch.version
        if request.torch.wheel is not None:
            arguments += ["--build-context", f"wheels={request.torch.wheel.parent}"]
    for name, value in values.items():
        arguments += ["--build-arg", f"{name}={value}"]
    for name, path in request.secrets.items():
        arguments += ["--secret", f"id={name},src={path}"]
    for tag in request.tags:
        arguments += ["--tag", tag]
    return [*arguments, str(request.root)]


def skips_tls(reference: str) -> bool:
    """Whether the registry is one on this machine, which docker speaks plain HTTP to as well."""
    host = reference.partition("/")[0].rpartition(":")[0] or reference.partition("/")[0]
    return host in ("localhost", "127.0.0.1", "[::1]")
