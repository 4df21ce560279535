"""The images there are, what they are called, and the error of everything here. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

STABLE_TAG: Final = "demo"
"""The tag that always points to the newest build, beside the one made from its inputs."""


class ImageError(RuntimeError):
    """An image could not be built or pushed; the message says what to do."""


class Target(StrEnum):
    """The stages of the Containerfile that become images."""

    OPERATOR = "operator"
    ENGINE = "engine"
    ENGINE_DEMO = "engine-demo"

    @property
    def holds_torch(self) -> bool:
        return self is not Target.OPERATOR


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """An image that is ready to be loaded or pulled."""

    ref: str
    """What a pod names; its tag changes exactly when something that went into the image does."""
    archive: Path
    """A tar file that a container runtime imports, with `ref` and the stable tag as its names."""
    digest: str
    """`sha256:…` of the archived manifest, or the image's id where docker built it."""


def parse_target(name: str) -> Target:
    """Raises `ImageError` for a name that is no target."""
    try:
        return Target(name)
    except ValueError:
        raise ImageError(f"there is no image {name!r}: choose from {', '.join(Target)}") from None


def image_name(target: Target, tag: str, registry: str | None = None) -> str:
    """`localhost/pagefleet/engine:0123456789ab`, or the same below a registry."""
    return f"{registry.rstrip('/') if registry else 'localhost'}/pagefleet/{target}:{tag}"
