"""The holder: one process that is PID 1 of new network, mount and PID namespaces. When it ends, so does all inside.

Everything here changes only those namespaces; the host's interfaces, packet filters, mounts and settings stay.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from e2e.cluster.config import SYSCTLS
from e2e.cluster.errors import StartError
from e2e.cluster.layout import SERVICE_CIDR, Layout, Node

CLONE_NEWNET = 0x40000000
HOLDER_TIMEOUT_S = 10.0


def start_holder(pause: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start it so that it dies with the calling thread. Returns `unshare`, which waits for it, and the holder's pid."""
    die_with_parent = ("setpriv", "--pdeathsig", "KILL")
    unshare = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    launcher = subprocess.Popen((*die_with_parent, *unshare, str(pause)), stdin=subprocess.DEVNULL, cwd="/")
    deadline = time.monotonic() + HOLDER_TIMEOUT_S
    while time.monotonic() < deadline and launcher.poll() is None:
        if pid := find_child(launcher.pid, pause):
            return launcher, pid
        time.sleep(0.005)
    launcher.kill()
    raise StartError("could not make namespaces: see supervisor.log")


def find_child(parent: int, program: Path) -> int | None:
    """The child of `parent` that runs `program` already."""
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        found = [int(pid) for pid in children if Path(f"/proc/{pid}/exe").resolve() == program.resolve()]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return found[0] if found else None


def enter_argv(holder: int, argv: Sequence[str]) -> tuple[str, ...]:
    """A command line that runs `argv` inside; the command dies with the `nsenter` that waits for it."""
    die_with_parent = ("setpriv", "--pdeathsig", "KILL")
    return ("nsenter", "-t", str(holder), "-n", "-m", "-p", "--wd=/", "--", *die_with_parent, *argv)


def prepare(holder: int, layout: Layout) -> None:
    """Mounts, bridges, routes and settings inside. Raises `StartError` with what the shell said."""
    script = "\n".join(render_setup(layout))
    argv = enter_argv(holder, ("sh", "-euc", script))
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    if result.returncode:
        raise StartError(f"could not prepare the namespaces: {result.stderr.strip()}")


def render_setup(layout: Layout) -> list[str]:
    """Shell commands, one per line."""
    return [
        "mount -t tmpfs tmpfs /run",
        "mkdir -p /run/netns /run/lock",
        f"mount --bind {quote(str(layout.var_lib))} /var/lib",
        f"mount --bind {quote(str(layout.var_log))} /var/log",
        *(f"mount --bind {quote(f'{layout.sysctls}/{name}')} /proc/sys/{name}" for name in SYSCTLS),
        "ip link set lo up",
        *(command for node in layout.nodes for command in render_bridge(node)),
        # The namespace has no default route, and without a route a connection fails before its address is translated.
        f"ip route add {SERVICE_CIDR} dev {layout.nodes[0].bridge} src {layout.nodes[0].address}",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        # Answers between pods of one bridge must come back through the translation.
        "for f in /proc/sys/net/bridge/bridge-nf-call-iptables; do [ ! -e $f ] || echo 1 > $f; done",
    ]


def render_bridge(node: Node) -> list[str]:
    """A node's bridge. It exists before the runtime does, because its address is the node's."""
    return [
        f"ip link add {node.bridge} type bridge",
        f"ip addr add {node.address}/24 dev {node.bridge}",
        f"ip link set {node.bridge} up",
    ]


def join_network(holder: int) -> None:
    """Move the calling thread, and no other, into the holder's network namespace. Raises OSError."""
    namespace = os.open(f"/proc/{holder}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
            code = ctypes.get_errno()
            raise OSError(code, f"cannot enter the cluster's network: {os.strerror(code)}")
    finally:
        os.close(namespace)
