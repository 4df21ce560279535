"""What the components are told: files, command lines, and the shell lines that lay out the namespaces."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from e2e.cluster.bootstrap import list_dns_objects
from e2e.cluster.config import render_files
from e2e.cluster.layout import Layout, Node
from e2e.cluster.namespaces import enter_argv, render_setup
from e2e.cluster.processes import list_base_processes, list_client_processes

LAYOUT = Layout(state=Path("/s"))
TWO_NODES = Layout(state=Path("/s"), nodes=(Node(number=1), Node(number=2)))
PROGRAMS = Path("/p")


def render(layout=LAYOUT):
    files = render_files(layout, cni_folder=Path("/usr/lib/cni"), runc=Path("/usr/sbin/runc"))
    return {str(path): text for path, text in files.items()}


def test_a_second_node_adds_files_of_its_own_only():
    one, two = render(), render(TWO_NODES)
    assert {path: two[path] for path in one} == one
    assert sorted(set(two) - set(one)) == [
        "/s/fresh/config/cni-node2/10-pods.conflist",
        "/s/fresh/config/containerd-node2.toml",
        "/s/fresh/config/kubelet-node2.json",
        "/s/fresh/config/kubelet-node2.kubeconfig",
    ]


def test_containerd_keeps_to_its_folders_and_to_our_sandbox_image():
    config = tomllib.loads(render()["/s/fresh/config/containerd-node1.toml"])
    plugins = config["plugins"]
    assert (config["version"], config["root"], config["state"]) == (4, "/s/images/node1", "/run/containerd-node1")
    assert plugins["io.containerd.server.v1.grpc"]["address"] == "/run/containerd-node1.sock"
    assert plugins["io.containerd.cri.v1.images"]["pinned_images"] == {"sandbox": "localhost/pagefleet/pause:1"}
    runtime = plugins["io.containerd.cri.v1.runtime"]
    assert runtime["restrict_oom_score_adj"] is True
    assert runtime["cni"] == {"bin_dirs": ["/usr/lib/cni"], "conf_dir": "/s/fresh/config/cni-node1"}
    assert runtime["containerd"]["runtimes"]["runc"]["options"] == {
        "BinaryName": "/usr/sbin/runc",
        "SystemdCgroup": False,
    }


def test_a_folder_with_quotes_stays_one_folder():
    layout = Layout(state=Path('/it\'s "mine"'))
    files = render_files(layout, cni_folder=Path("/c"), runc=Path("/r"))
    text = files[layout.config / "containerd-node1.toml"]
    assert tomllib.loads(text)["root"] == '/it\'s "mine"/images/node1'
    assert "mount --bind '/it'\"'\"'s \"mine\"/fresh/var-lib' /var/lib" in render_setup(layout)


def test_the_kubelet_serves_on_its_bridge_and_never_deletes_images():
    config = json.loads(render(TWO_NODES)["/s/fresh/config/kubelet-node2.json"])
    assert config["address"] == "10.201.2.1"
    assert config["containerRuntimeEndpoint"] == "unix:///run/containerd-node2.sock"
    assert config["cgroupRoot"] == f"/{LAYOUT.cgroup(Node(number=2))}"
    assert config["clusterDNS"] == ["10.202.0.10"]
    assert config["imageGCHighThresholdPercent"] == 100
    assert config["podLogsDir"] == "/var/log/pods-node2"


def test_pods_get_addresses_of_their_node():
    bridge = json.loads(render(TWO_NODES)["/s/fresh/config/cni-node2/10-pods.conflist"])["plugins"][0]
    assert bridge["bridge"] == "br2"
    assert bridge["ipam"]["ranges"] == [[{"subnet": "10.201.2.0/24", "gateway": "10.201.2.1"}]]


def test_two_clusters_never_share_a_control_group():
    other = Layout(state=Path("/other"))
    node = Node(number=1)
    assert LAYOUT.cgroup(node) == "pagefleet-8e295f31-node1"
    assert other.cgroup(node) != LAYOUT.cgroup(node)


def test_processes_in_start_order():
    assert [process.name for process in list_base_processes(TWO_NODES, PROGRAMS)] == [
        "etcd",
        "kube-apiserver",
        "containerd-node1",
        "containerd-node2",
    ]
    assert [process.name for process in list_client_processes(TWO_NODES, PROGRAMS)] == [
        "kube-controller-manager",
        "kube-scheduler",
        "kubelet-node1",
        "kubelet-node2",
        "kube-proxy",
        "coredns",
    ]


def test_the_kubelet_command_line():
    kubelet = next(p for p in list_client_processes(TWO_NODES, PROGRAMS) if p.name == "kubelet-node2")
    assert kubelet.argv == (
        "/p/kubelet",
        "--config=/s/fresh/config/kubelet-node2.json",
        "--kubeconfig=/s/fresh/config/kubelet-node2.kubeconfig",
        "--root-dir=/var/lib/kubelet-2",
        "--node-ip=10.201.2.1",
        "--hostname-override=node2",
    )


def test_the_setup_of_the_namespaces():
    assert render_setup(TWO_NODES) == [
        "mount -t tmpfs tmpfs /run",
        "mkdir -p /run/netns /run/lock",
        "mount --bind /s/fresh/var-lib /var/lib",
        "mount --bind /s/fresh/var-log /var/log",
        "mount --bind /s/fresh/config/sysctl/vm/overcommit_memory /proc/sys/vm/overcommit_memory",
        "mount --bind /s/fresh/config/sysctl/vm/panic_on_oom /proc/sys/vm/panic_on_oom",
        "mount --bind /s/fresh/config/sysctl/kernel/panic /proc/sys/kernel/panic",
        "mount --bind /s/fresh/config/sysctl/kernel/panic_on_oops /proc/sys/kernel/panic_on_oops",
        "mount --bind /s/fresh/config/sysctl/kernel/keys/root_maxkeys /proc/sys/kernel/keys/root_maxkeys",
        "mount --bind /s/fresh/config/sysctl/kernel/keys/root_maxbytes /proc/sys/kernel/keys/root_maxbytes",
        "ip link set lo up",
        "ip link add br1 type bridge",
        "ip addr add 10.201.1.1/24 dev br1",
        "ip link set br1 up",
        "ip link add br2 type bridge",
        "ip addr add 10.201.2.1/24 dev br2",
        "ip link set br2 up",
        "ip route add 10.202.0.0/16 dev br1 src 10.201.1.1",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        "for f in /proc/sys/net/bridge/bridge-nf-call-iptables; do [ ! -e $f ] || echo 1 > $f; done",
    ]


def test_what_runs_inside_dies_with_who_waits_for_it():
    assert enter_argv(42, ("kubelet", "--x")) == (
        *("nsenter", "-t", "42", "-n", "-m", "-p", "--wd=/", "--"),
        *("setpriv", "--pdeathsig", "KILL", "kubelet", "--x"),
    )


def test_cluster_dns_is_at_the_address_that_pods_are_given():
    service, endpoints = list_dns_objects(Node(number=1))
    assert service["spec"]["clusterIP"] == "10.202.0.10"
    assert endpoints["endpoints"] == [{"addresses": ["10.201.1.1"], "conditions": {"ready": True}}]
    assert endpoints["metadata"]["labels"] == {"kubernetes.io/service-name": "kube-dns"}
