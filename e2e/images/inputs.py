"""What goes into an image, as one digest: two builds with the same digest need not both happen.

File contents count, their dates do not. README.md is no input: the wheel in the images has no long description.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.images.targets import ImageError, Target

SOURCE_ROOTS: Final = ("operator", "engine", "cli", "kernels")
COMMON: Final = ("Containerfile", ".dockerignore", "pyproject.toml", "requirements/build.txt")
REQUIREMENTS: Final = {
    Target.OPERATOR: ("requirements/operator.txt",),
    Target.ENGINE: ("requirements/engine.txt", "requirements/torch.txt"),
    Target.ENGINE_DEMO: ("requirements/engine.txt", "requirements/torch.txt", "requirements/demo.txt"),
}
PYTHON_TAG: Final = "cp311"
"""The Python of the base image that is made here (Debian 12)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """Which build of torch an engine image gets."""

    version: str
    """As pip names it: `2.13.0`, or `2.13.0+cpu` from a folder of wheels."""
    wheel: Path | None
    """None: the package registry's."""

    @property
    def described(self) -> str:
        return f"torch {self.version} from {self.wheel.parent if self.wheel else 'the package registry'}"


def input_files(root: Path, target: Target) -> Iterator[Path]:
    """The files of the repository that can change this image."""
    yield from (root / name for name in (*COMMON, *REQUIREMENTS[target]))
    for folder in SOURCE_ROOTS:
        files = (path for path in (root / folder).rglob("*") if path.is_file())
        yield from sorted(path for path in files if "__pycache__" not in path.parts)


def digest_inputs(root: Path, target: Target, others: Mapping[str, str]) -> str:
    """Over the repository's files and `others` (base, torch, version): hexadecimal sha256."""
    parts = {str(path.relative_to(root)): hash_file(path) for path in input_files(root, target)}
    return digest_parts({**parts, **{f"={name}": value for name, value in others.items()}})


def digest_parts(parts: Mapping[str, str]) -> str:
    """Names and values, in the order of the names; neither may hold a line break."""
    lines = (f"{name}\t{value}\n" for name, value in sorted(parts.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def hash_file(path: Path) -> str:
    """Hexadecimal sha256. Raises `ImageError` where the file is missing."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        raise ImageError(f"{path} is missing: it goes into the images") from None


def project_version(pyproject: str) -> str:
    return str(tomllib.loads(pyproject)["project"]["version"])


def pinned_torch(requirements: str) -> str:
    """The version in requirements/torch.txt."""
    found = re.search(r"^torch==(\S+)", requirements, re.MULTILINE)
    if found is None:
        raise ImageError("requirements/torch.txt pins no torch")
    return found.group(1)


def choose_torch(pinned: str, machine: str, wheels: Iterable[Path]) -> TorchBuild:
    """A wheel of the pinned version for the base's Python and this machine, else the registry's build.

    Of several builds (`+cpu`, `+cu130`) the last by name, as pip would choose.
    """
    pattern = re.compile(rf"torch-({re.escape(pinned)}(?:\+[\w.]+)?)-{PYTHON_TAG}-{PYTHON_TAG}-\S*{machine}\.whl")
    fitting = sorted((found.group(1), wheel) for wheel in wheels if (found := pattern.fullmatch(wheel.name)))
    if not fitting:
        return TorchBuild(version=pinned, wheel=None)
    version, wheel = fitting[-1]
    return TorchBuild(version=version, wheel=wheel)


def wheels_offered(find_links: str) -> list[Path]:
    """The wheels in the local folders of PIP_FIND_LINKS; addresses in it are pip's own affair."""
    folders = (
        Path(word.removeprefix("file://")) for word in find_links.split() if "://" not in word.replace("file://", "")
    )
    return [wheel.absolute() for folder in folders if folder.is_dir() for wheel in sorted(folder.glob("*.whl"))]
