"""Restarts, relaying, and what is read from the API server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading

import pytest

from e2e.cluster.client import find_ready_nodes
from e2e.cluster.errors import StartError
from e2e.cluster.layout import Layout
from e2e.cluster.relay import Relay, bind_loopback
from e2e.cluster.supervisor import next_backoff, take_lock, wait_for_end


@pytest.mark.parametrize(
    ("lifetimes", "waits"),
    [
        pytest.param([0.1] * 8, [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10], id="dying at once: longer and longer"),
        pytest.param([0.1, 0.1, 31, 0.1], [0.2, 0.4, 0.2, 0.4], id="a long life forgives"),
    ],
)
def test_backoff(lifetimes, waits):
    found, last = [], 0.0
    for ran_s in lifetimes:
        last = next_backoff(last, ran_s)
        found.append(last)
    assert found == waits


def test_a_cluster_has_one_supervisor_at_a_time(tmp_path):
    layout = Layout(state=tmp_path)
    with take_lock(layout), pytest.raises(StartError, match="this cluster is starting already"):
        take_lock(layout)
    take_lock(layout).close()


async def test_the_end_of_a_process_that_is_no_child_is_seen():
    process = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)
    waiting = asyncio.create_task(wait_for_end(process.pid))
    await asyncio.sleep(0)
    assert not waiting.done()
    process.stdin.close()
    await waiting
    await process.wait()
    await wait_for_end(process.pid)


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        ([{"type": "Ready", "status": "True"}], ["node1"]),
        ([{"type": "Ready", "status": "Unknown"}], []),
        ([{"type": "DiskPressure", "status": "True"}], []),
        ([], []),
    ],
)
def test_ready_nodes(conditions, ready):
    node = {"metadata": {"name": "node1"}, "status": {"conditions": conditions}}
    assert find_ready_nodes({"items": [node]}) == ready


@pytest.fixture
def echo_server():
    """Answers what it was sent, after the other side has finished."""
    listener = bind_loopback()

    def answer(connection):
        with connection:
            connection.sendall(b"".join(iter(lambda: connection.recv(65536), b"")))

    def serve():
        with contextlib.suppress(OSError):
            while True:
                answer(listener.accept()[0])

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.mark.skipif(os.geteuid() != 0, reason="entering a network namespace needs root")
def test_a_relay_carries_both_directions_and_the_end_of_each(echo_server):
    message = b"x" * 1_000_000
    with Relay(os.getpid(), echo_server) as relay, socket.create_connection(relay.address, 30) as client:
        client.sendall(message)
        client.shutdown(socket.SHUT_WR)
        assert b"".join(iter(lambda: client.recv(65536), b"")) == message


@pytest.mark.skipif(os.geteuid() != 0, reason="entering a network namespace needs root")
def test_nobody_at_the_far_end_is_an_end_not_an_error():
    with bind_loopback() as free:
        target = free.getsockname()
    with Relay(os.getpid(), target) as relay, socket.create_connection(relay.address, 30) as client:
        assert client.recv(1) == b""


def test_a_namespace_that_is_gone_is_an_error():
    with pytest.raises(FileNotFoundError):
        Relay(2**22 + 1, ("10.202.0.1", 443))
