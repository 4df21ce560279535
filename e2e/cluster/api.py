"""The local cluster, for the demo and the end-to-end tests.

    cluster = up()
    cluster.load_image(Path("engine.tar"), "localhost/pagefleet/engine:dev")
    with cluster.forward("10.202.0.1", 443) as relay:
        ...connect to relay.address...

Every function works on the caller's own folders (PAGEFLEET_CACHE, PAGEFLEET_STATE) unless it is given others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from e2e.cluster import lifecycle
from e2e.cluster.doctor import list_problems
from e2e.cluster.errors import ClusterError, MissingError, StartError, ToolBuildError
from e2e.cluster.facts import find_cni_folder, find_program, gather_facts, install_packages
from e2e.cluster.folders import Folders, find_hidden_folder, user_folders
from e2e.cluster.layout import Layout
from e2e.cluster.modules import CLIENT_MODULES
from e2e.cluster.readiness import wait_until_usable
from e2e.cluster.relay import Relay
from e2e.cluster.running import Cluster
from e2e.cluster.tools import Tools, build_tools, hold_lock

__all__ = [
    "Cluster",
    "ClusterError",
    "ClusterStatus",
    "MissingError",
    "Relay",
    "StartError",
    "ToolBuildError",
    "Tools",
    "connect",
    "down",
    "ensure_client_tools",
    "ensure_tools",
    "is_running",
    "prepare_machine",
    "problems",
    "read_status",
    "up",
]

Say = Callable[[str], None]


def print_line(line: str) -> None:
    """The default for `say`: indented, at once."""
    print(f"    {line}", flush=True)


def problems() -> list[str]:
    """One line for everything that this machine lacks and that `up` could not get by itself."""
    return list_problems(gather_facts())


def is_running(folders: Folders | None = None) -> bool:
    """Whether the cluster runs."""
    return lifecycle.find_running(layout_of(folders)) is not None


def prepare_machine(say: Say = print_line) -> None:
    """Install missing Debian packages, those for building images too. Raises `MissingError` for anything else."""
    facts = gather_facts()
    if not list_problems(facts) and facts.missing_packages:
        install_packages(facts.missing_packages, say)
        facts = dataclasses.replace(gather_facts(), has_apt=False)  # what is still missing, apt-get does not bring
    if found := list_problems(facts):
        raise MissingError("this machine cannot run the local cluster:\n" + "\n".join(f"  {line}" for line in found))


def ensure_tools(say: Say = print_line, folders: Folders | None = None) -> Tools:
    """Every program of the cluster, verified; built first where the cache lacks it, which takes minutes."""
    return build_tools(folders or user_folders(), None, say)


def ensure_client_tools(say: Say = print_line, folders: Folders | None = None) -> Tools:
    """kubectl and helm only, for a cluster that somebody else runs."""
    return build_tools(folders or user_folders(), CLIENT_MODULES, say)


def up(say: Say = print_line, folders: Folders | None = None) -> Cluster:
    """The running, usable cluster; started empty when none runs. Raises `ClusterError` with what to do."""
    folders = folders or user_folders()
    if hidden := find_hidden_folder(folders):
        raise ClusterError(
            f"{hidden} cannot be seen from inside the cluster, which has a /run, /var/lib and /var/log of its own;"
            " set PAGEFLEET_CACHE and PAGEFLEET_STATE to other folders"
        )
    layout = layout_of(folders)
    with hold_lock(layout.lock, say):
        if lifecycle.find_running(layout) is None:
            prepare_machine(say)
            tools = ensure_tools(say, folders)
            lifecycle.stop(layout)  # what a crash or a reboot left behind
            say("starting the cluster")
            cni_folder, runc = find_cni_folder(), find_program("runc")
            if cni_folder is None or runc is None:
                raise MissingError("the packages runc and containernetworking-plugins are not complete")
            lifecycle.start(layout, tools, cni_folder=cni_folder, runc=runc)
        cluster = connect(folders)
        wait_until_usable(cluster, say)
        return cluster


def connect(folders: Folders | None = None) -> Cluster:
    """The cluster that runs already. Raises `StartError` when none does."""
    layout = layout_of(folders)
    record = lifecycle.find_running(layout)
    if record is None:
        raise StartError("no local cluster runs; start one with: make cluster-up")
    return Cluster(layout=layout, record=record)


def down(say: Say = print_line, folders: Folders | None = None, *, purge: bool = False) -> bool:
    """Stop the cluster and remove what it made; `purge` removes the loaded images and the logs too.

    Returns whether it ran.
    """
    layout = layout_of(folders)
    with hold_lock(layout.lock, say):
        return lifecycle.stop(layout, purge=purge)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """What `status` tells."""

    cluster: Cluster
    ready_nodes: list[str]
    memory_bytes: int
    """Resident, shared pages counted once, of everything that runs inside and of the supervisor."""


def read_status(folders: Folders | None = None) -> ClusterStatus | None:
    """None when no cluster runs."""
    if not is_running(folders):
        return None
    cluster = connect(folders)
    return ClusterStatus(
        cluster=cluster, ready_nodes=cluster.client.list_ready_nodes(), memory_bytes=cluster.measure_memory()
    )


def layout_of(folders: Folders | None) -> Layout:
    """Where that cluster is."""
    return Layout(state=(folders or user_folders()).state)
