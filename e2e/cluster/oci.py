"""Write images of a single program, and read what an image archive is. Archives are OCI layouts in a tar file."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OCI = "application/vnd.oci.image"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def build_image(name: str, program: bytes, ref: str, machine: str) -> bytes:
    """An archive with one static program as its entry point, run by nobody. Equal arguments give equal bytes."""
    layer = write_tar({name: (program, 0o755)})
    config = encode(
        {
            "architecture": ARCHITECTURES.get(machine, machine),
            "os": "linux",
            "config": {"Entrypoint": [f"/{name}"], "User": "65535:65535"},
            "rootfs": {"type": "layers", "diff_ids": [digest_of(layer)]},
        }
    )
    manifest = encode(
        {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": describe(config, f"{OCI}.config.v1+json"),
            "layers": [describe(layer, f"{OCI}.layer.v1.tar")],
        }
    )
    entry = describe(manifest, f"{OCI}.manifest.v1+json")
    entry["annotations"] = {"org.opencontainers.image.ref.name": ref}
    index = encode({"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": [entry]})
    blobs = {f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}": (blob, 0o644) for blob in (layer, config, manifest)}
    layout = {"oci-layout": (encode({"imageLayoutVersion": "1.0.0"}), 0o644), "index.json": (index, 0o644)}
    return write_tar({**layout, **blobs})


def write_tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    """A tar with these files (content and mode), owned by root and without dates."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def encode(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def digest_of(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def describe(blob: bytes, media_type: str) -> dict[str, Any]:
    """An OCI content descriptor."""
    return {"mediaType": media_type, "digest": digest_of(blob), "size": len(blob)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What an OCI archive holds."""

    digest: str
    """Of its index, and so of all of it."""
    names: tuple[str, ...]
    """References that it gives its images."""


def read_archive(path: Path) -> Archive:
    """Read the index of an OCI archive. Raises OSError, or ValueError when it is something else."""
    try:
        with tarfile.open(path) as tar:
            for entry in tar:
                if entry.name.removeprefix("./") == "index.json" and (file := tar.extractfile(entry)):
                    return parse_index(file.read())
    except tarfile.TarError as error:
        raise ValueError(f"{path} is not an OCI archive: {error}") from error
    raise ValueError(f"{path} is not an OCI archive: it has no index.json")


def parse_index(index: bytes) -> Archive:
    """From the bytes of index.json."""
    entries = json.loads(index)["manifests"]
    annotations = (entry.get("annotations", {}) for entry in entries)
    # docker writes the whole name for containerd, and only the tag under the standard key.
    names = (
        found.get("io.containerd.image.name") or found.get("org.opencontainers.image.ref.name") for found in annotations
    )
    return Archive(digest=digest_of(index), names=tuple(name for name in names if name))
