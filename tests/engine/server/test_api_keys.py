"""API keys: who gets in, who does not, and what happens when the files change."""

from __future__ import annotations

import os

import httpx
import pytest

from pagefleet_engine.errors import StartupError
from pagefleet_engine.server.api_keys import ApiKeys
from pagefleet_engine.server.errors import ApiError
from pagefleet_engine.server.testing import FakeEngine, running_server, say

KEYS = b"first-key\n\n  second-key  \n"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_bytes(KEYS)
    return path


def gets_in(keys: ApiKeys, *values: bytes) -> bool:
    try:
        keys.check({"headers": [(b"host", b"x"), *((b"authorization", value) for value in values)]})
    except ApiError:
        return False
    return True


# sentence → (Authorization headers, gets in)
PRESENTED = {
    "the first key": ([b"Bearer first-key"], True),
    "the second key": ([b"Bearer second-key"], True),
    "the scheme in lower case": ([b"bearer first-key"], True),
    "nothing": ([], False),
    "an empty header": ([b""], False),
    "the scheme alone": ([b"Bearer"], False),
    "an empty key": ([b"Bearer "], False),
    "the key without a scheme": ([b"first-key"], False),
    "another scheme": ([b"Basic first-key"], False),
    "a prefix of the key": ([b"Bearer first-ke"], False),
    "the key and more": ([b"Bearer first-key2"], False),
    "CVE-2025-59425: a key that differs in its last byte": ([b"Bearer first-kez"], False),
    "the key in capitals": ([b"Bearer FIRST-KEY"], False),
    "bytes beyond ASCII": ([b"Bearer \xff\xfe"], False),
    "a key of 60,000 bytes": ([b"Bearer " + b"a" * 60_000], False),
    "both keys in one header": ([b"Bearer first-key second-key"], False),
    "two headers, both right": ([b"Bearer first-key", b"Bearer first-key"], False),
}


@pytest.mark.parametrize(("values", "want"), PRESENTED.values(), ids=PRESENTED.keys())
def test_presented(key_file, values, want):
    assert gets_in(ApiKeys(key_file, monotonic=Clock()), *values) is want


def test_a_mounted_secret_is_a_folder(tmp_path):
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "team").write_text("hidden")
    (tmp_path / "team-a").write_text("a-key")
    (tmp_path / "team-b").write_text("b-key")
    keys = ApiKeys(tmp_path, monotonic=Clock())
    assert [gets_in(keys, b"Bearer " + key) for key in (b"a-key", b"b-key", b"hidden")] == [True, True, False]


def test_changed_files_are_read_again(key_file):
    clock = Clock()
    keys = ApiKeys(key_file, monotonic=clock)
    key_file.write_text("third-key")
    os.utime(key_file, ns=(1, 1))
    assert gets_in(keys, b"Bearer first-key")
    clock.now = 1.0
    assert [gets_in(keys, b"Bearer first-key"), gets_in(keys, b"Bearer third-key")] == [False, True]


def test_files_that_vanish_leave_the_old_keys(key_file, caplog):
    clock = Clock()
    keys = ApiKeys(key_file, monotonic=clock)
    key_file.unlink()
    for second in (1.0, 2.0, 3.0):
        clock.now = second
        assert gets_in(keys, b"Bearer first-key")
    assert caplog.text.count("the old value stays in force") == 1


def test_an_emptied_file_lets_nobody_in_until_there_is_a_key_again(key_file, caplog):
    clock = Clock()
    keys = ApiKeys(key_file, monotonic=clock)
    got = []
    for content in ("", "first-key"):
        key_file.write_text(content)
        clock.now += 1
        got.append([gets_in(keys, b"Bearer first-key"), gets_in(keys, b"Bearer "), gets_in(keys)])
    assert got == [[False, False, False], [True, False, False]]
    assert "there is no key in it: nobody gets in" in caplog.text


def mount(folder, version: str, files: dict[str, str]):
    """What the kubelet does with a Secret: new links, the folder behind all of them swapped, then old links removed."""
    (folder / version).mkdir(parents=True)
    for name, content in files.items():
        (folder / version / name).write_text(content)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    (folder / "..data_tmp").symlink_to(version)
    (folder / "..data_tmp").rename(folder / "..data")
    yield "swapped"
    for link in folder.iterdir():
        if not link.name.startswith("..") and link.name not in files:
            link.unlink()
    yield "cleaned"


def test_the_last_key_of_a_mounted_secret_can_be_revoked(tmp_path):
    clock = Clock()
    list(mount(tmp_path, "..1", {"team-a": "a-key", "team-b": "b-key"}))
    keys = ApiKeys(tmp_path, monotonic=clock)
    got = []
    for version, files in (("..2", {"team-c": "c-key"}), ("..3", {}), ("..4", {"team-a": "a-key"})):
        for _ in mount(tmp_path, version, files):
            clock.now += 1
            got.append([gets_in(keys, b"Bearer " + key) for key in (b"a-key", b"b-key", b"c-key")])
    only_c, nobody, only_a = [False, False, True], [False] * 3, [True, False, False]
    assert got == [only_c, only_c, nobody, nobody, only_a, only_a]


# sentence → (content of the file or None, the reason)
UNUSABLE = {
    "no such file": (None, "No such file or directory"),
    "an empty file": (b"\n \n", "there is no key in it: one key a line"),
    "a file that is too large": (b"a" * 1_048_577, "keys is larger than 1048576 bytes"),
}


@pytest.mark.parametrize(("content", "reason"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_unusable_at_the_start(tmp_path, content, reason):
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StartupError) as caught:
        ApiKeys(path, monotonic=Clock())
    assert str(caught.value) == f"--api-key-file {path}: {reason}"


# sentence → (path, headers, status without a key)
PATHS = {
    "the health probe": ("/health", {}, 200),
    "the readiness probe": ("/ready", {}, 200),
    "the metrics": ("/metrics", {}, 200),
    "the model list": ("/v1/models", {}, 401),
    "the OpenAPI document": ("/openapi.json", {}, 401),
    "a path that does not exist": ("/nope", {}, 401),
    "CVE-2026-48746: a Host header with a path in it": ("/v1/models", {"host": "x/health"}, 401),
    "CVE-2026-48746: a Host header with a query": ("/v1/models", {"host": "x?/metrics"}, 401),
    "CVE-2026-48746: an encoded slash": ("/health%2f..%2fv1/models", {}, 401),
    "dots in the path": ("/health/../v1/models", {}, 401),
    "CVE-2026-48746: two slashes": ("//health", {}, 401),
    "a slash at the end": ("/health/", {}, 401),
    "the path of a proxy in a header": (
        "/v1/models",
        {"x-original-url": "/health", "x-forwarded-prefix": "/health"},
        401,
    ),
}


async def test_paths(key_file):
    keys = ApiKeys(key_file, monotonic=Clock())
    got = {}
    async with running_server(FakeEngine(say("x")), api_keys=keys) as server, httpx.AsyncClient() as client:
        for sentence, (path, headers, _) in PATHS.items():
            request = client.build_request("GET", server.url, headers=headers)
            request.url = request.url.copy_with(raw_path=path.encode())
            got[sentence] = (await client.send(request)).status_code
        allowed = await client.get(f"{server.url}/v1/models", headers={"authorization": "Bearer second-key"})
        refused = await client.post(f"{server.url}/v1/completions", json={"prompt": "a"})
    assert got == {sentence: status for sentence, (_, _, status) in PATHS.items()}
    assert allowed.status_code == 200
    assert refused.headers["www-authenticate"] == "Bearer"
    assert refused.json()["error"]["code"] == "invalid_api_key"
