"""The cluster's processes: their command lines, pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster.layout import API_PORT, PLUGINS_FOLDER, SERVICE_CIDR, Layout, Node

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process to keep running inside the namespaces."""

    name: str
    argv: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)


def list_base_processes(layout: Layout, programs: Path) -> list[Process]:
    """What needs no API server: the store, the server itself and the container runtimes."""
    return [
        etcd(layout, programs),
        kube_apiserver(layout, programs),
        *(containerd(layout, node, programs) for node in layout.nodes),
    ]


def list_client_processes(layout: Layout, programs: Path) -> list[Process]:
    """What the API server must answer for."""
    return [
        kube_controller_manager(layout, programs),
        kube_scheduler(layout, programs),
        *(kubelet(layout, node, programs) for node in layout.nodes),
        kube_proxy(layout, programs),
        coredns(layout, programs),
    ]


def etcd(layout: Layout, programs: Path) -> Process:
    """No fsync: a cluster that starts empty has nothing to lose."""
    client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
    flags = (
        f"--data-dir={layout.etcd}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    )
    return Process(name="etcd", argv=(str(programs / "etcd"), *flags))


def kube_apiserver(layout: Layout, programs: Path) -> Process:
    pki = layout.pki
    flags = (
        "--bind-address=0.0.0.0",
        f"--secure-port={API_PORT}",
        f"--advertise-address={layout.nodes[0].address}",
        "--etcd-servers=http://127.0.0.1:2379",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        f"--tls-cert-file={pki}/kube-apiserver.crt",
        f"--tls-private-key-file={pki}/kube-apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/kubelet-client.crt",
        f"--kubelet-client-key={pki}/kubelet-client.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--profiling=false",
        "--v=1",
    )
    return Process(name="kube-apiserver", argv=(str(programs / "kube-apiserver"), *flags))


def kube_controller_manager(layout: Layout, programs: Path) -> Process:
    """With generous client limits: at the default ones the first service account takes twice as long."""
    pki = layout.pki
    flags = (
        f"--kubeconfig={layout.config}/kube-controller-manager.kubeconfig",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={pki}/sa.key",
        f"--root-ca-file={pki}/ca.crt",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        f"--flex-volume-plugin-dir={PLUGINS_FOLDER}",
        "--kube-api-qps=300",
        "--kube-api-burst=600",
        "--v=1",
    )
    return Process(name="kube-controller-manager", argv=(str(programs / "kube-controller-manager"), *flags))


def kube_scheduler(layout: Layout, programs: Path) -> Process:
    flags = (
        f"--kubeconfig={layout.config}/kube-scheduler.kubeconfig",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",
        "--kube-api-qps=300",
        "--kube-api-burst=600",
        "--v=1",
    )
    return Process(name="kube-scheduler", argv=(str(programs / "kube-scheduler"), *flags))


def kube_proxy(layout: Layout, programs: Path) -> Process:
    argv = (str(programs / "kube-proxy"), f"--config={layout.config}/kube-proxy.json", "--v=1")
    return Process(name="kube-proxy", argv=argv)


def kubelet(layout: Layout, node: Node, programs: Path) -> Process:
    flags = (
        f"--config={layout.config}/kubelet-{node.name}.json",
        f"--kubeconfig={layout.config}/kubelet-{node.name}.kubeconfig",
        f"--root-dir={node.kubelet_root}",
        f"--node-ip={node.address}",
        f"--hostname-override={node.name}",
    )
    return Process(name=f"kubelet-{node.name}", argv=(str(programs / "kubelet"), *flags))


def containerd(layout: Layout, node: Node, programs: Path) -> Process:
    """It looks for its shim in PATH."""
    argv = (str(programs / "containerd"), "--config", f"{layout.config}/containerd-{node.name}.toml")
    environ = {"PATH": f"{programs}:{DEFAULT_PATH}"}
    return Process(name=f"containerd-{node.name}", argv=argv, environ=environ)


def coredns(layout: Layout, programs: Path) -> Process:
    return Process(name="coredns", argv=(str(programs / "coredns"), "-conf", f"{layout.config}/Corefile"))
