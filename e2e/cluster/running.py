"""A cluster that runs, and what tests and the demo do with it beyond kubectl."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from e2e.cluster.client import Client
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import Layout, Node
from e2e.cluster.namespaces import enter_argv
from e2e.cluster.oci import Archive, read_archive
from e2e.cluster.relay import Relay
from e2e.cluster.state import Record, look_up_process

ARCHIVE_LABEL = "pagefleet.io/archive"
"""On an image: the digest of the archive that it came from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Handle of the running cluster. It stays valid until the cluster is stopped."""

    layout: Layout
    record: Record

    @property
    def kubeconfig(self) -> Path:
        """For kubectl, helm and clients on the host; its context is `pagefleet-local`."""
        return self.layout.kubeconfig

    @property
    def programs(self) -> Path:
        """The folder with kubectl, helm, ctr and the rest."""
        return Path(self.record.programs)

    @property
    def client(self) -> Client:
        return Client(port=self.record.api_port, pki=self.layout.pki)

    def exec_inside(
        self, argv: Sequence[str], *, stdin: BinaryIO | int = subprocess.DEVNULL, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the host inside the namespaces. Raises `ClusterError` when `check` is set and it fails."""
        entered = enter_argv(self.record.holder.pid, argv)
        result = subprocess.run(entered, stdin=stdin, capture_output=True, text=True, check=False)
        if check and result.returncode:
            raise ClusterError(f"{argv[0]} failed inside the cluster: {result.stderr.strip()}")
        return result

    def forward(self, host: str, port: int) -> Relay:
        """A relay from a free port of 127.0.0.1 to a pod's or Service's IP address and port; close it after use."""
        return Relay(self.record.holder.pid, (host, port))

    def load_image(self, archive: Path, ref: str) -> bool:
        """Load an OCI archive into every node under the name `ref`. Returns False when all had it already."""
        try:
            content = read_archive(archive)
        except (OSError, ValueError) as error:
            raise ClusterError(f"cannot load the image {ref}: {error}") from error
        return any([self._load_into(node, archive, ref, content) for node in self.layout.nodes])

    def _load_into(self, node: Node, archive: Path, ref: str, content: Archive) -> bool:
        label = f"{ARCHIVE_LABEL}={content.digest}"
        if label in self.ctr(node, "images", "ls", f"name=={ref}").stdout:
            return False
        with archive.open("rb") as file:
            # A name given twice, by the archive and by us, ends with neither: name it only if the archive does not.
            self.ctr(node, "images", "import", *(() if content.names else ("--index-name", ref)), "-", stdin=file)
        if content.names and ref not in content.names:
            self.ctr(node, "images", "tag", "--force", content.names[0], ref)
        self.ctr(node, "images", "label", ref, label)
        return True

    def kill_container(self, pod_uid: str, container: str, *, signal: str = "KILL") -> None:
        """Send a signal to the first process of a pod's running container. Raises `ClusterError` when none runs."""
        self.exec_inside(("sh", "-c", f"kill -s {signal} {self.find_container_pid(pod_uid, container)}"))

    def find_container_pid(self, pod_uid: str, container: str) -> int:
        """The first process of a running container, as it is numbered inside. Raises `ClusterError` when none runs."""
        labels = {"io.kubernetes.pod.uid": pod_uid, "io.kubernetes.container.name": container}
        wanted = ",".join(f'labels."{name}"=={value}' for name, value in labels.items())
        for node in self.layout.nodes:
            known = self.ctr(node, "containers", "ls", "--quiet", wanted).stdout.split()
            rows = [line.split() for line in self.ctr(node, "tasks", "ls").stdout.splitlines()]
            running = [int(row[1]) for row in rows if row[0] in known and row[-1] == "RUNNING"]
            if running:
                return running[0]
        raise ClusterError(f"no container {container} of pod {pod_uid} runs")

    def ctr(
        self, node: Node, *words: str, stdin: BinaryIO | int = subprocess.DEVNULL, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """containerd's own command line, in the namespace of Kubernetes' containers."""
        argv = (str(self.programs / "ctr"), "--address", node.containerd_socket, "--namespace", "k8s.io", *words)
        return self.exec_inside(argv, stdin=stdin, check=check)

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self.record.supervisor.is_alive(look_up_process) and self.record.holder.is_alive(look_up_process)

    def measure_memory(self) -> int:
        """Bytes in use by everything inside and by the supervisor; a page that several share counts once in all."""
        inside = Path(f"/proc/{self.record.holder.pid}/ns/pid").readlink()
        pids = [self.record.supervisor.pid, *list_members(inside)]
        return sum(map(read_proportional_bytes, pids))


def list_members(namespace: Path) -> list[int]:
    """Processes of a PID namespace and of those below it that share its name; containers have their own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and is_in(entry, namespace):
            found.append(int(entry.name))
    return found


def is_in(process: Path, namespace: Path) -> bool:
    """False for a process that has just ended."""
    try:
        return (process / "ns" / "pid").readlink() == namespace
    except OSError:
        return False


def read_proportional_bytes(pid: int) -> int:
    """A process's proportional set size; 0 when it has just ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
