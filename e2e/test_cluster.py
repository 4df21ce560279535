"""The local cluster itself, on one that is started and stopped here, beside any other: what it can do, and that the
machine is afterwards as it was."""

from __future__ import annotations

import http.client
import json
import os
import platform
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster import api
from e2e.cluster.cgroups import list_hierarchies
from e2e.cluster.folders import Folders, user_folders
from e2e.cluster.layout import SANDBOX_IMAGE, Layout
from e2e.cluster.oci import build_image
from e2e.cluster.running import list_members
from e2e.cluster.state import look_up_process
from e2e.eventually import eventually
from e2e.kube import Kube

pytestmark = pytest.mark.e2e

# Settings of the machine that a kubelet or kube-proxy would write, and others that a router would.
SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
    "net/ipv4/conf/all/route_localnet",
    "net/netfilter/nf_conntrack_max",
)
FOLDERS = ("/opt/containerd", "/usr/libexec/kubernetes", "/var/lib/cni", "/var/lib/kubelet", "/run/netns")


def observe_machine():
    """What the cluster must leave alone."""

    def run(*argv):
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    rules = [line for line in run("iptables-save").splitlines() if not line.startswith(("#", ":"))]
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    settings = {name: Path("/proc/sys", name) for name in SETTINGS}
    return {
        "links": [link["ifname"] for link in json.loads(run("ip", "-json", "link"))],
        "routes": run("ip", "route"),
        "rules": rules,
        # Images may be built at the same time, with mounts in the cache.
        "mounts": sorted(path for path in mounts if not Path(path).is_relative_to(user_folders().cache)),
        "settings": {name: path.read_text() for name, path in settings.items() if path.exists()},
        "folders": {path: Path(path).exists() for path in FOLDERS},
    }


@pytest.fixture(scope="module")
def machine_before(able_machine):
    return observe_machine()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The built programs are everybody's, the cluster is this module's own."""
    return Folders(cache=user_folders().cache, state=tmp_path_factory.mktemp("own") / "cluster")


@pytest.fixture(scope="module")
def own(machine_before, folders):
    yield api.up(folders=folders)
    api.down(folders=folders, purge=True)


@pytest.fixture(scope="module")
def kube(own):
    return Kube(kubectl_path=own.programs / "kubectl", helm_path=own.programs / "helm", kubeconfig=own.kubeconfig)


PROBE_IMAGE = "localhost/pagefleet/probe:1"
COREFILE = ".:1053 {\n    health :8080\n}\n"


def pod(name, *, image=PROBE_IMAGE, **container):
    """A pod that the restricted profile admits. Its program answers HTTP on port 8080."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "trial", "labels": {"app": "probe"}},
        "spec": {
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "config", "configMap": {"name": "probe"}}],
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "volumeMounts": [{"name": "config", "mountPath": "/config"}],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    **container,
                }
            ],
        },
    }


SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "probe", "namespace": "trial"},
    "spec": {"selector": {"app": "probe"}, "ports": [{"port": 80, "targetPort": 8080}]},
}


@pytest.fixture(scope="module")
def service_address(own, kube, tmp_path_factory):
    """The cluster address of a Service in front of one running pod, `first`."""
    archive = tmp_path_factory.mktemp("images") / "probe.tar"
    program = (own.programs / "coredns").read_bytes()
    archive.write_bytes(build_image("coredns", program, PROBE_IMAGE, platform.machine()))
    assert own.load_image(archive, PROBE_IMAGE) is True
    assert own.load_image(archive, PROBE_IMAGE) is False
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "trial", "labels": labels}})
    metadata = {"name": "probe", "namespace": "trial"}
    kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"Corefile": COREFILE}})
    kube.apply(SERVICE)
    readiness = {"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 1}
    kube.apply(pod("first", args=["-conf", "/config/Corefile"], readinessProbe=readiness))
    kube.kubectl("wait", "-n", "trial", "pod/first", "--for=condition=Ready", "--timeout=60s")
    return kube.get("service", "probe", "trial")["spec"]["clusterIP"]


def get(address, path):
    connection = http.client.HTTPConnection(*address, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_the_sandbox_image_itself_runs_under_the_restricted_profile(kube, service_address):
    kube.apply(pod("sandbox", image=SANDBOX_IMAGE))
    kube.kubectl("wait", "-n", "trial", "pod/sandbox", "--for=condition=Ready", "--timeout=60s")
    kube.kubectl("delete", "-n", "trial", "pod", "sandbox", "--grace-period=1")


def test_a_service_answers_through_a_relay(own, service_address):
    with own.forward(service_address, 80) as relay:
        assert get(relay.address, "/health") == "OK"


def test_a_service_answers_another_pod_on_the_same_bridge_and_the_pod_itself(own, kube, service_address):
    kube.apply(pod("second", args=["-conf", "/config/Corefile"]))
    kube.kubectl("wait", "-n", "trial", "pod/second", "--for=condition=Ready", "--timeout=60s")
    url = f"http://{service_address}/health"
    script = f"import urllib.request; print(urllib.request.urlopen('{url}', timeout=5).read())"
    for name in ("first", "second"):
        uid = kube.get("pod", name, "trial")["metadata"]["uid"]
        pid = str(own.find_container_pid(uid, "main"))
        answers = {own.exec_inside(("nsenter", "-t", pid, "-n", sys.executable, "-c", script)).stdout for _ in range(8)}
        assert answers == {"b'OK'\n"}
    kube.kubectl("delete", "-n", "trial", "pod", "second", "--grace-period=1")


def test_logs_and_exec(kube, service_address):
    assert "CoreDNS-" in kube.kubectl("logs", "-n", "trial", "first").stdout
    assert kube.kubectl("exec", "-n", "trial", "first", "--", "/coredns", "-version").stdout.startswith("CoreDNS-")


def test_names_of_services_resolve(own, service_address):
    labels = b"".join(bytes([len(word)]) + word for word in b"probe.trial.svc.cluster.local".split(b"."))
    query = struct.pack(">6H", 1, 0x0100, 1, 0, 0, 0) + labels + struct.pack(">BHH", 0, 1, 1)

    def resolve():
        with own.forward("10.202.0.10", 53) as relay, socket.create_connection(relay.address) as connection:
            connection.sendall(struct.pack(">H", len(query)) + query)
            return connection.recv(4096)[-4:] == socket.inet_aton(service_address)

    eventually(resolve, "the address of probe.trial.svc.cluster.local", timeout_s=20)


def test_a_killed_container_is_started_again(own, kube, service_address):
    uid = kube.get("pod", "first", "trial")["metadata"]["uid"]
    own.kill_container(uid, "main")

    def restarted():
        statuses = kube.get("pod", "first", "trial")["status"]["containerStatuses"]
        return statuses[0]["restartCount"] == 1 and statuses[0]["ready"]

    eventually(restarted, "the container's restart")


def test_a_killed_component_is_started_again(own):
    own.exec_inside(("sh", "-c", "kill -9 $(pidof kube-apiserver)"))
    log = own.layout.logs / "supervisor.log"
    eventually(lambda: "kube-apiserver ended with code -9" in log.read_text(), "the API server's end")
    eventually(lambda: own.client.get("/readyz") == "ok", "the API server's return")


def test_the_machine_is_the_same_while_the_cluster_runs(machine_before, own, service_address):
    assert observe_machine() == machine_before


@pytest.mark.parametrize("victim", ["holder", "supervisor"])
def test_after_a_kill_nothing_is_left_and_the_next_start_is_clean(own, folders, kube, service_address, victim):
    running = api.connect(folders)
    os.kill(getattr(running.record, victim).pid, signal.SIGKILL)
    eventually(lambda: not running.is_alive(), "the end of the cluster")
    with pytest.raises(api.StartError, match="no local cluster runs"):
        api.connect(folders)
    again = api.up(folders=folders)
    assert again.record.holder != running.record.holder
    assert kube.list("pods", "default") == []
    assert kube.get("namespace", "trial") is None, "a start after a stop is empty"
    images = again.ctr(again.layout.nodes[0], "images", "ls", "--quiet").stdout.split()
    assert PROBE_IMAGE in images, "loaded images stay"


def test_down_leaves_nothing(machine_before, own, folders):
    layout = Layout(state=folders.state)
    running = api.connect(folders)
    members = list_members(Path(f"/proc/{running.record.holder.pid}/ns/pid").readlink())
    supervisor = running.record.supervisor.pid
    waiting = [int(pid) for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()]
    assert len(waiting) == 9, "who waits outside for the holder and for eight components"
    assert len(members) >= 9, "those themselves, and now and then a short iptables command of kube-proxy"
    assert api.down(folders=folders) is True
    assert api.down(folders=folders) is False
    # The kernel's init reaps who waited outside, a moment after the supervisor has ended.
    eventually(lambda: not any(map(look_up_process, (*members, *waiting))), "the end of every process")
    assert [root for root, _ in list_hierarchies() if (root / layout.cgroup(layout.nodes[0])).exists()] == []
    assert sorted(path.name for path in folders.state.iterdir()) == ["images", "logs", "logs.old", "supervisor.lock"]
    assert observe_machine() == machine_before
    api.down(folders=folders, purge=True)
    assert not folders.state.exists()
