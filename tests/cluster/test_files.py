"""Folders, logs, images, control groups and built programs: what is kept, and what is noticed."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from e2e.cluster.cgroups import create_cgroup, list_processes, parse_hierarchies, remove_cgroup
from e2e.cluster.errors import ToolBuildError
from e2e.cluster.folders import Folders, find_folders, find_hidden_folder
from e2e.cluster.golang import Go
from e2e.cluster.logs import open_log, read_tail, trim_logs
from e2e.cluster.modules import Module
from e2e.cluster.oci import build_image, parse_index, read_archive
from e2e.cluster.tools import build, hold_lock, link_programs, verify


@pytest.mark.parametrize(
    ("environ", "cache", "state"),
    [
        pytest.param({}, "/home/a/.cache/pagefleet", "/home/a/.local/state/pagefleet/cluster", id="nothing set"),
        pytest.param(
            {"XDG_CACHE_HOME": "/c", "XDG_STATE_HOME": "/s"}, "/c/pagefleet", "/s/pagefleet/cluster", id="XDG"
        ),
        pytest.param(
            {"XDG_CACHE_HOME": "/c", "PAGEFLEET_CACHE": "/own", "PAGEFLEET_STATE": "/mine"},
            "/own",
            "/mine/cluster",
            id="our own variables win",
        ),
        pytest.param(
            {"PAGEFLEET_CACHE": "", "XDG_CACHE_HOME": ""},
            "/home/a/.cache/pagefleet",
            "/home/a/.local/state/pagefleet/cluster",
            id="empty is unset",
        ),
    ],
)
def test_folders(environ, cache, state):
    assert find_folders(environ, Path("/home/a")) == Folders(cache=Path(cache), state=Path(state))


@pytest.mark.parametrize(
    ("cache", "state", "hidden"),
    [
        ("/c", "/s", None),
        ("/var/lib/pagefleet", "/s", "/var/lib/pagefleet"),
        ("/c", "/run/pagefleet", "/run/pagefleet"),
        ("/c", "/var/library", None),
    ],
)
def test_folders_that_the_cluster_would_hide_from_itself(cache, state, hidden):
    found = find_hidden_folder(Folders(cache=Path(cache), state=Path(state)))
    assert found == (Path(hidden) if hidden else None)


def test_a_log_that_grew_too_long_is_moved_while_it_is_written(tmp_path):
    with open_log(tmp_path, "etcd") as log:
        log.write(b"old line\n" * 100)
        log.flush()
        trim_logs(tmp_path, max_bytes=500)
        log.write(b"new line\n")
    assert (tmp_path / "etcd.log").read_bytes() == b"new line\n"
    assert (tmp_path / "etcd.log.1").read_bytes() == b"old line\n" * 100


def test_a_short_log_stays(tmp_path):
    (tmp_path / "etcd.log").write_bytes(b"line\n" * 100)
    trim_logs(tmp_path, max_bytes=500)
    assert [path.name for path in tmp_path.iterdir()] == ["etcd.log"]


def test_the_end_of_a_log(tmp_path):
    (tmp_path / "x.log").write_bytes(b"1\n2\n\xff3\n")
    assert read_tail(tmp_path / "x.log", 2) == "2\n\ufffd3"
    assert read_tail(tmp_path / "none.log", 2) == ""


def test_the_sandbox_image_is_the_same_every_time_and_whole(tmp_path):
    archive = build_image("pause", b"program", "localhost/pause:1", "x86_64")
    assert archive == build_image("pause", b"program", "localhost/pause:1", "x86_64")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        blobs = {entry.name: tar.extractfile(entry).read() for entry in tar}
    for name, blob in blobs.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}"
    manifest_digest = json.loads(blobs["index.json"])["manifests"][0]["digest"]
    manifest = json.loads(blobs[f"blobs/{manifest_digest.replace(':', '/')}"])
    config = json.loads(blobs[f"blobs/{manifest['config']['digest'].replace(':', '/')}"])
    assert config["architecture"] == "amd64"
    assert config["config"] == {"Entrypoint": ["/pause"], "User": "65535:65535"}
    assert config["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]
    (tmp_path / "pause.tar").write_bytes(archive)
    assert read_archive(tmp_path / "pause.tar").names == ("localhost/pause:1",)


def test_an_index_without_names():
    index = b'{"manifests": [{"digest": "sha256:1"}]}'
    archive = parse_index(index)
    assert (archive.digest, archive.names) == (f"sha256:{hashlib.sha256(index).hexdigest()}", ())


def test_an_index_that_docker_wrote_has_the_whole_name_under_another_key():
    annotations = {"io.containerd.image.name": "localhost/pagefleet/engine:1", "org.opencontainers.image.ref.name": "1"}
    index = json.dumps({"manifests": [{"digest": "sha256:1", "annotations": annotations}]}).encode()
    assert parse_index(index).names == ("localhost/pagefleet/engine:1",)


@pytest.mark.parametrize("content", [b"", b"no tar at all"])
def test_what_is_no_archive_is_said_so(tmp_path, content):
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.tar is not an OCI archive"):
        read_archive(tmp_path / "x.tar")


MOUNTS = """\
proc /proc proc rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
"""


def test_hierarchies_are_found():
    assert parse_hierarchies(MOUNTS) == [
        (Path("/sys/fs/cgroup/cpu,cpuacct"), "cgroup"),
        (Path("/sys/fs/cgroup/unified"), "cgroup2"),
    ]


def test_groups_are_made_with_what_they_need_and_removed_with_those_below(tmp_path):
    old, new = tmp_path / "cpuset", tmp_path / "unified"
    for folder in (old, new):
        folder.mkdir()
    (old / "cpuset.cpus").write_text("0-1\n")
    (new / "cgroup.controllers").write_text("cpu memory\n")
    create_cgroup("pods", [(old, "cgroup"), (new, "cgroup2")])
    assert (old / "pods" / "cpuset.cpus").read_text() == "0-1\n"
    assert (new / "cgroup.subtree_control").read_text() == "+cpu +memory"
    (old / "pods" / "cpuset.cpus").unlink()  # the kernel's own files do not hinder a removal
    (new / "pods" / "a" / "b").mkdir(parents=True)
    remove_cgroup("pods", [(old, "cgroup"), (new, "cgroup2")])
    assert not (old / "pods").exists()
    assert not (new / "pods").exists()


def test_processes_of_a_group_and_those_below(tmp_path):
    (tmp_path / "pods" / "a").mkdir(parents=True)
    (tmp_path / "pods" / "cgroup.procs").write_text("")
    (tmp_path / "pods" / "a" / "cgroup.procs").write_text("12\n13\n")
    assert list_processes("pods", [(tmp_path, "cgroup")]) == {12, 13}


def write_fake_go(folder, script):
    path = folder / "go"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Go(path=path, version="go1.26.8 linux/amd64")


MAKE_SERVER = 'while [ "$1" != -o ]; do shift; done; echo program > "$2/server"'


def test_a_build_appears_complete_and_verifies(tmp_path):
    module = Module(name="etcd", binaries={"etcd": "example.org/server"}, folder="pause")
    target = tmp_path / "tools" / "etcd-1"
    target.parent.mkdir()
    build(module, write_fake_go(tmp_path, MAKE_SERVER), target)
    assert sorted(path.name for path in target.iterdir()) == ["etcd", "sha256.json"]
    verify(target)
    (target / "etcd").write_text("another program\n")
    with pytest.raises(ToolBuildError, match=r"etcd is not what was built; delete .*etcd-1 to build it again"):
        verify(target)


def test_a_failed_build_leaves_nothing_and_says_why(tmp_path):
    module = Module(name="etcd", binaries={"etcd": "example.org/server"}, folder="pause")
    target = tmp_path / "tools" / "etcd-1"
    (target.parent / ".etcd-abandoned.partial").mkdir(parents=True)
    go = write_fake_go(tmp_path, f"{MAKE_SERVER}; echo 'no space left on device' >&2; exit 1")
    with pytest.raises(ToolBuildError, match="go build of etcd failed:\nno space left on device"):
        build(module, go, target)
    assert list(target.parent.iterdir()) == []


def test_links_of_another_build_get_another_folder(tmp_path):
    first = link_programs(tmp_path / "bin", {"etcd": Path("/tools/etcd-1/etcd")})
    again = link_programs(tmp_path / "bin", {"etcd": Path("/tools/etcd-1/etcd")})
    second = link_programs(tmp_path / "bin", {"etcd": Path("/tools/etcd-2/etcd")})
    assert first == again != second
    assert (second / "etcd").readlink() == Path("/tools/etcd-2/etcd")


def test_a_second_process_says_that_it_waits(tmp_path):
    said = []
    with hold_lock(tmp_path / "lock", said.append):
        pass
    with hold_lock(tmp_path / "lock", said.append):
        pass
    assert said == []
