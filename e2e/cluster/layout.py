"""Where everything of a running cluster is: names, addresses, ports, folders. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

POD_CIDR = "10.201.0.0/16"
SERVICE_CIDR = "10.202.0.0/16"
API_SERVICE_ADDRESS = "10.202.0.1"
DNS_SERVICE_ADDRESS = "10.202.0.10"
CLUSTER_DOMAIN = "cluster.local"
API_PORT = 6443
"""Inside the namespaces."""
FIRST_RELAY_PORT = 16443
"""On the host's loopback; any free port is taken when this one is in use."""
CONTEXT = "pagefleet-local"
PLUGINS_FOLDER = "/var/lib/kubelet-plugins"
"""Volume plugins, of which there are none; the usual place would be a folder of the host."""
SANDBOX_IMAGE = "localhost/pagefleet/pause:1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One Kubernetes node: a bridge, a containerd and a kubelet. All nodes share the namespaces and one kube-proxy."""

    number: int

    @property
    def name(self) -> str:
        return f"node{self.number}"

    @property
    def bridge(self) -> str:
        return f"br{self.number}"

    @property
    def address(self) -> str:
        """The bridge's, and so the node's."""
        return f"10.201.{self.number}.1"

    @property
    def pod_cidr(self) -> str:
        return f"10.201.{self.number}.0/24"

    @property
    def kubelet_root(self) -> str:
        """On the namespaces' own /var/lib, because the paths of its sockets must stay short."""
        return f"/var/lib/kubelet-{self.number}"

    @property
    def containerd_run(self) -> str:
        """containerd's volatile state, on the namespaces' own /run."""
        return f"/run/containerd-{self.name}"

    @property
    def containerd_socket(self) -> str:
        return f"{self.containerd_run}.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The folders of one cluster. `state` is what `down --purge` removes."""

    state: Path
    nodes: tuple[Node, ...] = (Node(number=1),)

    @property
    def fresh(self) -> Path:
        """What every start makes anew: certificates, configuration, API data, kubelet folders."""
        return self.state / "fresh"

    @property
    def pki(self) -> Path:
        return self.fresh / "pki"

    @property
    def config(self) -> Path:
        return self.fresh / "config"

    @property
    def sysctls(self) -> Path:
        """Files with the values that processes inside see under /proc/sys."""
        return self.config / "sysctl"

    @property
    def etcd(self) -> Path:
        return self.fresh / "etcd"

    @property
    def var_lib(self) -> Path:
        """What is /var/lib inside."""
        return self.fresh / "var-lib"

    @property
    def var_log(self) -> Path:
        """What is /var/log inside."""
        return self.fresh / "var-log"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def old_logs(self) -> Path:
        """Those of the start before."""
        return self.state / "logs.old"

    @property
    def record(self) -> Path:
        """Who runs: see state.py."""
        return self.state / "running.json"

    @property
    def lock(self) -> Path:
        """Outside `state`, so that purging does not remove a lock that is held."""
        return self.state.with_name(self.state.name + ".lock")

    @property
    def supervisor_lock(self) -> Path:
        """Held by the supervisor for its life, so that there is one even when its start was cut short."""
        return self.state / "supervisor.lock"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    def image_store(self, node: Node) -> Path:
        """containerd's root; kept between runs."""
        return self.state / "images" / node.name

    def cgroup(self, node: Node) -> str:
        """The parent of the node's pods in every hierarchy, a name that no other cluster on this machine has."""
        return f"pagefleet-{hashlib.sha256(str(self.state).encode()).hexdigest()[:8]}-{node.name}"
