"""Archives: two names for one image, kept by tag, verified before use."""

import hashlib
import json
import os
import tarfile

import pytest

from e2e.images.archive import Shelf, pack_layout


@pytest.fixture
def layout(tmp_path):
    """An image of one layer, as `buildah push dir:` leaves it."""
    folder = tmp_path / "layout"
    folder.mkdir()
    blobs = {}
    for name, content in {"config": b"{}", "layer": b"files"}.items():
        blobs[name] = hashlib.sha256(content).hexdigest()
        (folder / blobs[name]).write_bytes(content)
    layers = [{"digest": f"sha256:{blobs['layer']}"}] * 2
    (folder / "manifest.json").write_text(
        json.dumps({"config": {"digest": f"sha256:{blobs['config']}"}, "layers": layers})
    )
    return folder


def test_an_archive_holds_each_blob_once_and_both_names(layout, tmp_path):
    path = tmp_path / "image.tar"
    with path.open("wb") as out:
        digest = pack_layout(layout, ("localhost/a:1", "localhost/a:demo"), out)
    with tarfile.open(path) as tar:
        names = tar.getnames()
        index = json.load(tar.extractfile("index.json"))
        contents = {name: tar.extractfile(name).read() for name in names if name.startswith("blobs/")}
    assert len(names) == len(set(names)) == 5
    assert all(name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}" for name, content in contents.items())
    assert [
        (entry["digest"], entry["annotations"]["org.opencontainers.image.ref.name"]) for entry in index["manifests"]
    ] == [
        (digest, "localhost/a:1"),
        (digest, "localhost/a:demo"),
    ]
    assert digest.replace(":", "/") in "".join(names)


@pytest.fixture
def shelf(tmp_path):
    folder = tmp_path / "engine"
    folder.mkdir()
    return Shelf(folder=folder)


def put(shelf, tag, content=b"archive"):
    partial = shelf.folder / "unfinished.tar"
    partial.write_bytes(content)
    return shelf.keep(partial, tag, f"sha256:{tag}")


def test_a_kept_archive_is_found_again(shelf):
    record = put(shelf, "aaaa")
    assert shelf.find("aaaa") == record
    assert shelf.find("bbbb") is None
    assert sorted(path.name for path in shelf.folder.iterdir()) == ["aaaa.json", "aaaa.tar"]


DAMAGES = {
    "changed": lambda shelf: shelf.archive("aaaa").write_bytes(b"ARCHIVE"),
    "cut short": lambda shelf: shelf.archive("aaaa").write_bytes(b"arch"),
    "gone": lambda shelf: shelf.archive("aaaa").unlink(),
    "without its record": lambda shelf: (shelf.folder / "aaaa.json").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_archive_is_not_used(shelf, damage):
    put(shelf, "aaaa")
    damage(shelf)
    assert shelf.find("aaaa") is None


def test_the_newest_other_archive_stays(shelf):
    for age, tag in enumerate(["new", "old", "older"]):
        put(shelf, tag)
        os.utime(shelf.folder / f"{tag}.json", (1_000_000 - age, 1_000_000 - age))
    put(shelf, "current")
    os.utime(shelf.folder / "current.json", (1, 1))
    assert shelf.drop_old("current") == ["old", "older"]
    assert sorted(path.name for path in shelf.folder.iterdir()) == [
        "current.json",
        "current.tar",
        "new.json",
        "new.tar",
    ]
