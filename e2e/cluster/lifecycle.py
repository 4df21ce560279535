"""Start and stop the cluster as a whole: what is laid out before the supervisor starts, and what is removed after."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from e2e.cluster.cgroups import list_hierarchies, list_processes, remove_cgroup
from e2e.cluster.config import dump, kubeconfig, render_files
from e2e.cluster.errors import ClusterError, StartError
from e2e.cluster.layout import Layout
from e2e.cluster.logs import open_log, read_tail
from e2e.cluster.pki import write_pki
from e2e.cluster.state import ProcessId, Record, look_up_process, read_boot_id, read_record
from e2e.cluster.supervisor import take_lock
from e2e.cluster.tools import Tools

REPOSITORY = Path(__file__).parents[2]
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
Say = Callable[[str], None]


def find_running(layout: Layout) -> Record | None:
    """The record of a cluster that runs; None when there is none or what is left of it is stale."""
    record = read_record(layout.record)
    return record if record and record.is_running(read_boot_id(), look_up_process) else None


def start(layout: Layout, tools: Tools, *, cni_folder: Path, runc: Path) -> Record:
    """Lay out a fresh cluster and start its supervisor. Nothing of it may run. Raises `StartError`."""
    layout.state.mkdir(parents=True, exist_ok=True)
    take_lock(layout).close()
    write_layout(layout, cni_folder=cni_folder, runc=runc)
    argv = (sys.executable, "-m", "e2e.cluster.supervisor", str(layout.state), str(tools.folder))
    with open_log(layout.logs, "supervisor") as log:
        supervisor = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=REPOSITORY,
            start_new_session=True,
        )
    try:
        record = wait_for_record(layout, supervisor)
    except BaseException:
        supervisor.kill()  # nobody could find it later: there is no record of it
        supervisor.wait()
        raise
    supervisor.returncode = 0  # it is to outlive this process, which must not complain about that
    write_kubeconfig(layout, record.api_port)
    return record


def wait_for_record(layout: Layout, supervisor: subprocess.Popen[bytes]) -> Record:
    """Return when the supervisor has said who runs. Raises `StartError` when it does not."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and supervisor.poll() is None:
        if record := find_running(layout):
            return record
        time.sleep(0.02)
    raise StartError(f"the supervisor did not start:\n{read_tail(layout.logs / 'supervisor.log', 10)}")


def write_layout(layout: Layout, *, cni_folder: Path, runc: Path) -> None:
    """Make certificates, configuration and empty folders; the images that are there stay."""
    layout.state.chmod(0o700)
    shutil.rmtree(layout.fresh, ignore_errors=True)
    shutil.rmtree(layout.old_logs, ignore_errors=True)
    if layout.logs.is_dir():
        layout.logs.rename(layout.old_logs)
    for folder in (layout.logs, layout.etcd, layout.var_lib, layout.var_log, *map(layout.image_store, layout.nodes)):
        folder.mkdir(parents=True, exist_ok=True)
    layout.etcd.chmod(0o700)
    write_pki(layout, datetime.now(UTC))
    for path, text in render_files(layout, cni_folder=cni_folder, runc=runc).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_kubeconfig(layout: Layout, port: int) -> None:
    """The one for people, in one step: it must never be half there."""
    partial = layout.kubeconfig.with_suffix(".partial")
    partial.touch(mode=0o600)
    partial.write_text(dump(kubeconfig(layout.pki, "admin", f"https://127.0.0.1:{port}")))
    partial.rename(layout.kubeconfig)


def stop(layout: Layout, *, purge: bool = False) -> bool:
    """End what runs and remove what it made. Returns whether there was anything to stop. Raises `ClusterError`."""
    record = read_record(layout.record)
    living = record.living(read_boot_id(), look_up_process) if record else []
    for process in living:
        end(process)
    hierarchies = list_hierarchies()
    for node in layout.nodes:
        for pid in list_processes(layout.cgroup(node), hierarchies):
            wait_for_end_of(ProcessId(pid=pid, started_ticks=look_up_process(pid) or 0))
        remove_cgroup(layout.cgroup(node), hierarchies)
    layout.record.unlink(missing_ok=True)
    layout.kubeconfig.unlink(missing_ok=True)
    shutil.rmtree(layout.fresh, ignore_errors=True)
    if purge:
        shutil.rmtree(layout.state, ignore_errors=True)
    return bool(living)


def end(process: ProcessId) -> None:
    """Ask a process to end, and kill it when it does not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not process.is_alive(look_up_process):
            return
        os.kill(process.pid, number)
        if wait_for_end_of(process):
            return
    raise ClusterError(f"process {process.pid} of the cluster does not end")


def wait_for_end_of(process: ProcessId) -> bool:
    """Whether it has ended within the time allowed."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while process.is_alive(look_up_process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
