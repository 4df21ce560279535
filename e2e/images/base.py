"""The root file system that images made here start from: Debian's smallest, with Python, from this machine's mirror.

Kept in the cache and verified before use. It names no mirror, name server or host, and holds no package lists, logs,
manuals or set-uid bits. Deleting the cache's `base` folder takes up newer Debian packages.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from e2e.images.inputs import digest_parts, hash_file
from e2e.images.process import APART, capture, run_logged
from e2e.images.targets import ImageError
from e2e.progress import Say

SUITE: Final = "bookworm"
PACKAGES: Final = "python3,python3-venv,ca-certificates"
REMOVED: Final = (
    *("etc/apt/sources.list", "etc/resolv.conf", "etc/hostname"),
    *("var/lib/apt/lists", "var/cache/apt", "var/cache/debconf", "var/cache/ldconfig", "var/log"),
    *("usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian"),
)
RECREATED: Final = ("var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/cache/debconf", "var/log")
CLEAN: Final = r"""
find usr/share/doc -type f ! -name copyright -delete
find usr/share/doc -type l -delete
find usr/share/doc -mindepth 1 -type d -empty -delete
find . -xdev -type f -perm /6000 -exec chmod a-s {} +
"""
TARGETS_FORMAT: Final = "$(SITE)\t$(RELEASE)\t$(COMPONENT)"


def ensure_base(folder: Path, log: Path, say: Say, environ: Mapping[str, str]) -> Path:
    """The tar file of the root file system. Raises `ImageError`."""
    recipe = digest_parts(
        {"suite": SUITE, "packages": PACKAGES, "clean": CLEAN.replace("\n", ";"), "removed": ",".join(REMOVED)}
    )
    tar = folder / f"{SUITE}-{recipe[:12]}.tar"
    checksum = tar.with_suffix(".sha256")
    if tar.exists() and checksum.exists() and hash_file(tar) == checksum.read_text().strip():
        return tar
    mirror = find_mirror(capture(["apt-get", "indextargets", "--format", TARGETS_FORMAT], environ).splitlines(), SUITE)
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob("partial-*"):
        shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(dir=folder, prefix="partial-") as unfinished:
        made = make_rootfs(Path(unfinished), mirror, log, say, environ)
        checksum.write_text(hash_file(made) + "\n")
        made.replace(tar)
    return tar


def make_rootfs(folder: Path, mirror: str, log: Path, say: Say, environ: Mapping[str, str]) -> Path:
    """Bootstrap, clean and pack below `folder`. debootstrap's mounts end with its namespace, whatever happens."""
    rootfs, tar = folder / "rootfs", folder / "rootfs.tar"
    say(f"Debian {SUITE} with Python, by debootstrap (about a minute)")
    options = ["--variant=minbase", f"--include={PACKAGES}"]
    run_logged([*APART, "debootstrap", *options, SUITE, str(rootfs), mirror], log, say, environ)
    for name in REMOVED:
        path = rootfs / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for name in RECREATED:
        (rootfs / name).mkdir(parents=True, exist_ok=True)
    subprocess.run(["sh", "-euc", CLEAN], cwd=rootfs, check=True, env=dict(environ))
    capture(["tar", "--sort=name", "--numeric-owner", "-C", str(rootfs), "-cf", str(tar), "."], environ)
    return tar


def find_mirror(index_targets: Iterable[str], suite: str) -> str:
    """The first of apt's sources with the suite's main component. Raises `ImageError`."""
    for line in index_targets:
        site, release, component = line.split("\t")
        if (release, component) == (suite, "main"):
            return site
    raise ImageError(
        f"no source of Debian {suite} in apt's configuration, from which the images' base is made: "
        "name an image with Python 3.11 instead, BASE=…, or use docker or podman (ENGINE=docker)"
    )
