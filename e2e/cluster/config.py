"""The files that the components read. Pure: values in, text out; `write_files` in processes.py puts them into place.

YAML readers accept JSON, so no YAML writer is needed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from e2e.cluster.layout import (
    CLUSTER_DOMAIN,
    CONTEXT,
    DNS_SERVICE_ADDRESS,
    PLUGINS_FOLDER,
    POD_CIDR,
    SANDBOX_IMAGE,
    Layout,
    Node,
)

SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What a kubelet writes to the whole machine's settings. Files with these values are mounted over them instead."""


def render_files(layout: Layout, *, cni_folder: Path, runc: Path) -> dict[Path, str]:
    """Every configuration file of a cluster, by path."""
    files = {layout.config / "kube-proxy.json": dump(kube_proxy(layout)), layout.config / "resolv.conf": ""}
    files |= {layout.sysctls / name: f"{value}\n" for name, value in SYSCTLS.items()}
    files[layout.config / "Corefile"] = corefile(layout)
    inside = "https://127.0.0.1:6443"
    for name in ("kube-controller-manager", "kube-scheduler", "kube-proxy", "coredns"):
        files[layout.config / f"{name}.kubeconfig"] = dump(kubeconfig(layout.pki, name, inside))
    for node in layout.nodes:
        files[layout.config / f"containerd-{node.name}.toml"] = containerd(layout, node, cni_folder, runc)
        files[layout.config / f"cni-{node.name}" / "10-pods.conflist"] = dump(cni(node))
        files[layout.config / f"kubelet-{node.name}.json"] = dump(kubelet(layout, node))
        files[layout.config / f"kubelet-{node.name}.kubeconfig"] = dump(
            kubeconfig(layout.pki, f"kubelet-{node.name}", inside)
        )
    return files


def dump(value: dict[str, Any]) -> str:
    """JSON for files that people may read, too."""
    return json.dumps(value, indent=1) + "\n"


def kubeconfig(pki: Path, identity: str, server: str) -> dict[str, Any]:
    """A kubeconfig that names certificate files."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": {"server": server, "certificate-authority": str(pki / "ca.crt")}}],
        "users": [
            {
                "name": identity,
                "user": {
                    "client-certificate": str(pki / f"{identity}.crt"),
                    "client-key": str(pki / f"{identity}.key"),
                },
            }
        ],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": identity}}],
        "current-context": CONTEXT,
    }


def kube_proxy(layout: Layout) -> dict[str, Any]:
    """kube-proxy's; it leaves the machine's connection tracking limits alone."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": POD_CIDR,
        "hostnameOverride": layout.nodes[0].name,
        "clientConnection": {"kubeconfig": str(layout.config / "kube-proxy.kubeconfig")},
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }


def kubelet(layout: Layout, node: Node) -> dict[str, Any]:
    """A kubelet's. It never collects images: they were loaded by hand and no registry could bring them back."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "healthzPort": 0,
        "readOnlyPort": 0,
        "containerRuntimeEndpoint": f"unix://{node.containerd_socket}",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(layout.pki / f"kubelet-{node.name}.crt"),
        "tlsPrivateKeyFile": str(layout.pki / f"kubelet-{node.name}.key"),
        "clusterDNS": [DNS_SERVICE_ADDRESS],
        "clusterDomain": CLUSTER_DOMAIN,
        "resolvConf": str(layout.config / "resolv.conf"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.cgroup(node)}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "volumePluginDir": PLUGINS_FOLDER,
        "podLogsDir": f"/var/log/pods-{node.name}",
        "imageGCHighThresholdPercent": 100,
        "imageMaximumGCAge": "0s",
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "nodeStatusUpdateFrequency": "2s",
        "nodeLeaseDurationSeconds": 8,
        "shutdownGracePeriod": "0s",
        "logging": {"format": "text", "verbosity": 1},
    }


def cni(node: Node) -> dict[str, Any]:
    """Pods on the node's bridge; a pod may reach itself through a Service."""
    bridge = {
        "type": "bridge",
        "bridge": node.bridge,
        "isDefaultGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": f"/run/cni-{node.name}",
            "ranges": [[{"subnet": node.pod_cidr, "gateway": node.address}]],
        },
    }
    return {
        "cniVersion": "1.0.0",
        "name": f"pods-{node.name}",
        "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}],
    }


def containerd(layout: Layout, node: Node, cni_folder: Path, runc: Path) -> str:
    """containerd's. Out-of-memory scores stay: to lower one needs a right that root in a container may lack.

    The disabled plugin would make a folder on the host.
    """
    root, conf_folder = layout.image_store(node), layout.config / f"cni-{node.name}"
    return f"""\
version = 4
root = {quote(root)}
state = "{node.containerd_run}"
disabled_plugins = ["io.containerd.internal.v1.opt"]

[plugins.'io.containerd.server.v1.grpc']
address = "{node.containerd_socket}"

[plugins.'io.containerd.server.v1.ttrpc']
address = "{node.containerd_socket}.ttrpc"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{SANDBOX_IMAGE}"

[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = [{quote(cni_folder)}]
conf_dir = {quote(conf_folder)}

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = {quote(runc)}
SystemdCgroup = false
"""


def quote(path: Path) -> str:
    """A TOML string; JSON's are."""
    return json.dumps(str(path))


def corefile(layout: Layout) -> str:
    """CoreDNS's: Services and pods of this cluster, and a quick no for everything else."""
    return f"""\
{CLUSTER_DOMAIN}:53 in-addr.arpa:53 {{
    bind {layout.nodes[0].address}
    errors
    ready 127.0.0.1:8181
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
        kubeconfig {layout.config / "coredns.kubeconfig"}
        pods insecure
        fallthrough in-addr.arpa
        ttl 5
    }}
    cache 5
}}
"""
