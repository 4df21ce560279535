"""Image archives in the cache: OCI layouts in a tar file, each with a record of what it is, verified before use.

A record is written last, so an archive without one is a leftover.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Final

from e2e.images.inputs import hash_file

MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
NAME_ANNOTATIONS: Final = ("org.opencontainers.image.ref.name", "io.containerd.image.name")
KEPT: Final = 2
"""Archives per image: one that runs, and the one that replaces it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What lies beside an archive."""

    tag: str
    digest: str
    """The image's."""
    sha256: str
    """The archive file's."""
    archive_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """The archives of one image."""

    folder: Path

    def archive(self, tag: str) -> Path:
        return self.folder / f"{tag}.tar"

    def prepare(self) -> None:
        """Make the folder, and remove what an interrupted build left in it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob("unfinished-*"):
            shutil.rmtree(leftover)

    def find(self, tag: str) -> Record | None:
        """The record of an archive that is whole; None where it is missing or was changed."""
        path = self.folder / f"{tag}.json"
        if not (path.exists() and self.archive(tag).exists()):
            return None
        record = Record(**json.loads(path.read_text()))
        whole = (
            self.archive(tag).stat().st_size == record.archive_bytes and hash_file(self.archive(tag)) == record.sha256
        )
        return record if whole else None

    def keep(self, partial: Path, tag: str, digest: str) -> Record:
        """Put a finished archive in its place."""
        record = Record(tag=tag, digest=digest, sha256=hash_file(partial), archive_bytes=partial.stat().st_size)
        partial.replace(self.archive(tag))
        unfinished = self.folder / f"{tag}.json.partial"
        unfinished.write_text(json.dumps(asdict(record)))
        unfinished.replace(self.folder / f"{tag}.json")
        return record

    def drop_old(self, current: str) -> list[str]:
        """Delete all but the newest archives; their tags."""
        records = sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        others = [path for path in records if path.stem != current]
        for record in others[KEPT - 1 :]:
            record.unlink()
            self.archive(record.stem).unlink(missing_ok=True)
        return [path.stem for path in others[KEPT - 1 :]]

    def touch(self, tag: str) -> None:
        """Count as used now."""
        os.utime(self.folder / f"{tag}.json")


def pack_layout(folder: Path, names: Sequence[str], out: BinaryIO) -> str:
    """Write an archive from a folder of blobs (named by their sha256) and a `manifest.json`; that one's digest."""
    manifest = (folder / "manifest.json").read_bytes()
    digest = hashlib.sha256(manifest).hexdigest()
    index = build_index(f"sha256:{digest}", len(manifest), names)
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        add_bytes(tar, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        add_bytes(tar, "index.json", json.dumps(index).encode())
        add_bytes(tar, f"blobs/sha256/{digest}", manifest)
        for blob in blobs_of(manifest):
            entry = tarfile.TarInfo(f"blobs/sha256/{blob}")
            with (folder / blob).open("rb") as content:
                entry.size = os.fstat(content.fileno()).st_size
                tar.addfile(entry, content)
    return f"sha256:{digest}"


def blobs_of(manifest: bytes) -> list[str]:
    """The sha256 of its configuration and layers, each once."""
    parsed = json.loads(manifest)
    digests = [parsed["config"]["digest"], *(layer["digest"] for layer in parsed["layers"])]
    return [digest.removeprefix("sha256:") for digest in dict.fromkeys(digests)]


def build_index(digest: str, size: int, names: Sequence[str]) -> dict[str, object]:
    """An OCI index that gives one manifest several names."""

    def entry(name: str) -> dict[str, object]:
        annotations = dict.fromkeys(NAME_ANNOTATIONS, name)
        return {"mediaType": MANIFEST_TYPE, "digest": digest, "size": size, "annotations": annotations}

    return {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [*map(entry, names)],
    }


def add_bytes(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
