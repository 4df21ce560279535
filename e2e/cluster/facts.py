"""Look at the machine for `doctor.py`, and install the Debian packages that it lacks."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from e2e.cluster.cgroups import list_hierarchies
from e2e.cluster.doctor import PACKAGES, PROBES, Facts
from e2e.cluster.errors import MissingError
from e2e.cluster.golang import find_go
from e2e.cluster.modules import MODULES, parse_go_version, required_go_version
from e2e.cluster.processes import DEFAULT_PATH

CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"), Path("/usr/libexec/cni"))


def gather_facts() -> Facts:
    """Look at everything. Takes a fraction of a second and changes nothing."""
    go = find_go()
    return Facts(
        system=platform.system(),
        python=sys.version_info[:2],
        is_root=os.geteuid() == 0,
        has_apt=find_program("apt-get") is not None,
        missing_packages=find_missing_packages(),
        go=parse_go_version(go.version) if go else None,
        required_go=required_go_version((module.path / "go.mod").read_text() for module in MODULES),
        has_pip=importlib.util.find_spec("pip") is not None,
        cgroup_controllers=find_controllers(),
        probes=run_probes() if os.geteuid() == 0 else {},
    )


def find_program(name: str) -> Path | None:
    """Look in PATH and where system programs are, which a user's PATH may leave out."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{DEFAULT_PATH}")
    return Path(found) if found else None


def find_cni_folder() -> Path | None:
    """Where the network plugins are."""
    return next((folder for folder in CNI_FOLDERS if (folder / "bridge").exists()), None)


def find_missing_packages() -> tuple[str, ...]:
    """In the table's order."""

    def is_there(sign: str) -> bool:
        if sign == "/usr/lib/cni/bridge":
            return find_cni_folder() is not None
        return Path(sign).exists() if sign.startswith("/") else find_program(sign) is not None

    return tuple(package for package, signs in PACKAGES.items() if not all(map(is_there, signs)))


def find_controllers() -> frozenset[str]:
    """Controllers that groups can be made for: one hierarchy each in version 1, all in one in version 2."""
    found: set[str] = set()
    for root, kind in list_hierarchies():
        if os.access(root, os.W_OK) and kind == "cgroup":
            found.update(root.name.split(","))
        elif os.access(root, os.W_OK):
            found.update((root / "cgroup.controllers").read_text().split())
    return frozenset(found)


def run_probes() -> Mapping[str, bool]:
    """Leave out those whose programs are missing: their packages are reported already."""
    environ = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{DEFAULT_PATH}"}
    outcomes = {}
    for name, argv in PROBES.items():
        needed = [program for program in ("unshare", "ip", "iptables") if program in " ".join(argv).split()]
        if all(map(find_program, needed)):
            result = subprocess.run(argv, env=environ, capture_output=True, check=False, timeout=30)
            outcomes[name] = result.returncode == 0
    return outcomes


def install_packages(packages: tuple[str, ...], say: Callable[[str], None]) -> None:
    """Install with apt-get, renewing its lists only when it does not know a package. Raises `MissingError`."""
    if not packages:
        return
    say(f"installing Debian packages: {', '.join(packages)}")
    apt = ("apt-get", "-o", "DPkg::Lock::Timeout=300", "--quiet", "--yes")
    install = (*apt, "install", "--no-install-recommends", *packages)
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for argv in (install, (*apt, "update"), install):
        result = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
        if argv is install and result.returncode == 0:
            return
    last_lines = "\n".join(result.stderr.splitlines()[-5:])
    raise MissingError(f"apt-get could not install {', '.join(packages)}:\n{last_lines}")
