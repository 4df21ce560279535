"""Models by name: what is downloaded from a hub, what never is, and the one line for whatever goes wrong.

The hub is a server on loopback; the client is the real one.
"""

import errno
import os

import pytest

from pagefleet_engine.contract.hub import HubModel, parse_hub_uri, try_hub_name
from pagefleet_engine.errors import StartupError
from pagefleet_engine.weights.choice import model_files, weight_files
from pagefleet_engine.weights.hub import Hub, HubError, explain, fetch
from pagefleet_engine.weights.resolve import LocalModel, resolve_model
from tests.engine.models.local_hub import Repository, running_hub

FOLDER = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "tokenizer.json": b"{ }",
    "chat_template.jinja": b"{{ x }}",
}
NEVER = {
    "modeling_x.py": b"raise SystemExit",
    "pytorch_model.bin": b"pickle",
    "model.pt": b"pickle",
    "original/model.safetensors": b"again",
    "consolidated.safetensors": b"again",
    "README.md": b"#",
    "model.Q4_1.gguf": b"again",
}

URIS = {
    "hf://owner/name": HubModel(repo_id="owner/name"),
    "hf://owner/name@v1.0": HubModel(repo_id="owner/name", revision="v1.0"),
    "hf://owner/name/a.gguf": HubModel(repo_id="owner/name", file="a.gguf"),
    "hf://o-w/n_a.m-e@main/sub/a.Q4_1.gguf": HubModel(repo_id="o-w/n_a.m-e", revision="main", file="sub/a.Q4_1.gguf"),
}
NO_URIS = ["hf://", "hf://name", "hf://a/b/c", "hf://a/b@", "hf://a/b@v/x.bin", "hf://a--b/c", "hf://a/..", "hf://a/b."]
NO_URIS += ["hf://a/b/../c.gguf", "hf://a/b c", "hf://-a/b", "hf://a/b\n", "hf://ä/b", "s3://a/b", "hf://a/" + "b" * 97]


@pytest.mark.parametrize(("uri", "want"), URIS.items())
def test_a_uri_in_its_parts(uri, want):
    assert parse_hub_uri(uri) == want


@pytest.mark.parametrize("uri", NO_URIS)
def test_what_is_no_uri_is_told_the_form(uri):
    with pytest.raises(ValueError, match=r"write hf://owner/name, hf://owner/name@revision or"):
        parse_hub_uri(uri)


SHORT = {
    "owner/name": HubModel(repo_id="owner/name"),
    "owner/name@v1": HubModel(repo_id="owner/name", revision="v1"),
    **dict.fromkeys(["name", "/owner/name", "./owner/name", "../name", "owner/name/more", "models/a.gguf", ""]),
    **dict.fromkeys(["owner/model.safetensors", "owner/", "~/name", "owner//name", "owner\\name"]),
}


@pytest.mark.parametrize(("text", "want"), SHORT.items())
def test_what_looks_like_a_name_and_what_like_a_path(text, want):
    assert try_hub_name(text) == want


FILES = {
    "weights with their settings, and nothing else": ([*FOLDER, *NEVER], None, sorted(FOLDER)),
    "weights in parts": (
        ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
        None,
        ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
    ),
    "weights under a name of their own": (
        ["config.json", "w.safetensors"],
        None,
        ["config.json", "w.safetensors"],
    ),
    "the only GGUF file": (["README.md", "config.json", "a.gguf"], None, ["a.gguf"]),
    "the GGUF file that was named": (["a.gguf", "q/b.gguf"], "q/b.gguf", ["q/b.gguf"]),
}


@pytest.mark.parametrize(("names", "file", "want"), FILES.values(), ids=FILES.keys())
def test_which_files_are_the_model(names, file, want):
    assert model_files(names, file) == want


NO_MODELS = {
    "several GGUF files": (
        ["b.gguf", "a.gguf"],
        None,
        "name one of its GGUF files, as in hf://owner/name/a.gguf; there are a.gguf, b.gguf",
    ),
    "many GGUF files": ([f"{i}.gguf" for i in range(9)], "x.gguf", "there is no file x.gguf in it; there are 0.gguf"),
    "a pickle alone": (["config.json", "pytorch_model.bin"], None, "neither config.json with .safetensors files nor"),
    "weights without a configuration": (["model.safetensors"], None, "neither config.json"),
    "nothing": ([], None, "neither config.json"),
}


@pytest.mark.parametrize(("names", "file", "says"), NO_MODELS.values(), ids=NO_MODELS.keys())
def test_what_is_no_model_is_told_what_there_is(names, file, says):
    with pytest.raises(ValueError, match=f"^.*{says}"):
        model_files(names, file)


def test_a_second_copy_of_the_weights_is_not_read():
    assert weight_files(["consolidated.safetensors", "model.safetensors"]) == ["model.safetensors"]
    assert weight_files(["b.safetensors", "a.safetensors", "config.json"]) == ["a.safetensors", "b.safetensors"]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_model_is_downloaded_once_and_only_its_data(tmp_path):
    with running_hub(tiny=Repository(files=FOLDER | NEVER)) as local:
        hub = Hub(endpoint=local.endpoint, cache=str(tmp_path))
        assert contents(fetch(HubModel(repo_id="owner/tiny"), hub)) == FOLDER
        assert sorted(local.asked) == sorted(FOLDER)
        fetch(HubModel(repo_id="owner/tiny"), hub)
        assert sorted(local.asked) == sorted(FOLDER)
        local.repositories["owner/tiny"].files["model.safetensors"] = b"new weights"
        assert contents(fetch(HubModel(repo_id="owner/tiny"), hub))["model.safetensors"] == b"new weights"


def test_what_is_in_the_cache_needs_no_hub(tmp_path):
    with running_hub(tiny=Repository(files=FOLDER, revisions=("main", "v1"))) as local:
        hub = Hub(endpoint=local.endpoint, cache=str(tmp_path))
        folder = fetch(HubModel(repo_id="owner/tiny", revision="v1"), hub)
    assert fetch(HubModel(repo_id="owner/tiny", revision="v1"), hub) == folder
    (folder / "model.safetensors").unlink()
    with pytest.raises(HubError, match=r"cannot be reached, and .* does not hold all of owner/tiny"):
        fetch(HubModel(repo_id="owner/tiny", revision="v1"), hub)
    with pytest.raises(
        HubError, match=r"cannot be reached \(ConnectError\), and .*: check network, proxy and HF_ENDPOINT"
    ):
        fetch(HubModel(repo_id="owner/tiny"), hub)


def test_of_many_files_one_is_downloaded(tmp_path):
    with running_hub(many=Repository(files={"a.gguf": b"a", "q/b[1].gguf": b"b", "q/b1.gguf": b"c"})) as local:
        hub = Hub(endpoint=local.endpoint, cache=str(tmp_path))
        path = fetch(HubModel(repo_id="owner/many", file="q/b[1].gguf"), hub)
        assert (path.name, path.read_bytes(), local.asked) == ("b[1].gguf", b"b", ["q/b[1].gguf"])


def test_a_gated_model_comes_with_its_token(tmp_path):
    with running_hub(secret=Repository(files=FOLDER, token="t0ken")) as local:
        hub = Hub(endpoint=local.endpoint, cache=str(tmp_path), token="t0ken")
        assert contents(fetch(HubModel(repo_id="owner/secret"), hub)) == FOLDER


REPOSITORIES = {
    "tiny": Repository(files=FOLDER),
    "secret": Repository(files=FOLDER, token="t0ken"),
    "huge": Repository(files=FOLDER, sizes={"model.safetensors": 2**70}),
    "pickle": Repository(files={"config.json": b"{}", "pytorch_model.bin": b""}),
    "broken": Repository(files=FOLDER, broken=503),
    "closed": Repository(files=FOLDER, broken=403),
}
REFUSED = {
    "an unknown model": (HubModel(repo_id="owner/nobody"), "knows no model owner/nobody: correct the name, or set HF_"),
    "an unknown revision": (HubModel(repo_id="owner/tiny", revision="v9"), "has no revision v9 of owner/tiny: name a"),
    "a gated model": (HubModel(repo_id="owner/secret"), "accepted its terms: accept them there, and set HF_TOKEN"),
    "more than the disk holds": (HubModel(repo_id="owner/huge"), f"{2**70 + 12} more bytes in .*: set HF_HOME to a"),
    "no model inside": (HubModel(repo_id="owner/pickle"), "owner/pickle cannot be loaded from the hub: it has neither"),
    "a hub in trouble": (HubModel(repo_id="owner/broken"), "answers 503 for owner/broken: try again later"),
    "a hub that refuses": (HubModel(repo_id="owner/closed"), "refuses owner/closed with 403: set HF_TOKEN to a token"),
    "a file that is not there": (HubModel(repo_id="owner/tiny", file="x.gguf"), "there is no file x.gguf in it"),
}


@pytest.fixture(scope="module")
def troubled():
    with running_hub(**REPOSITORIES) as local:
        yield local


@pytest.mark.parametrize(("model", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_what_goes_wrong_is_one_line_with_a_remedy(tmp_path, troubled, model, says):
    with pytest.raises(HubError, match=says) as error:
        fetch(model, Hub(endpoint=troubled.endpoint, cache=str(tmp_path)))
    assert "\n" not in str(error.value)


def test_a_cache_that_cannot_be_a_folder(tmp_path, troubled):
    (tmp_path / "file").write_text("")
    with pytest.raises(HubError, match=r"/file cannot be used for owner/tiny \(File exists\): set HF_HOME to a folder"):
        fetch(HubModel(repo_id="owner/tiny"), Hub(endpoint=troubled.endpoint, cache=str(tmp_path / "file")))


def test_a_disk_that_fills_up_meanwhile():
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    said = explain(full, HubModel(repo_id="owner/tiny"), Hub(endpoint="http://hub", cache="/cache"))
    assert said == "the disk is full at /cache: set HF_HOME to a folder on a larger volume"


def test_what_is_here_always_wins(tmp_path, monkeypatch):
    (tmp_path / "owner/name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("owner/name") == LocalModel(path="owner/name")
    assert resolve_model("owner") == LocalModel(path="owner")


NOWHERE = {
    "a path": ("/none/such", "--model /none/such: no such file or folder"),
    "a file's name": ("models/none.gguf", "--model models/none.gguf: no such file or folder"),
    "a broken URI": ("hf://name", "--model 'hf://name' names no model on a hub: write hf://owner/name, "),
    "an endless name": ("x" * 5000, f"--model {'x' * 80}: File name too long"),
}


@pytest.mark.parametrize(("model", "says"), NOWHERE.values(), ids=NOWHERE.keys())
def test_what_is_neither_here_nor_a_name_asks_no_hub(model, says):
    with pytest.raises(StartupError) as error:
        resolve_model(model)
    assert str(error.value).startswith(says)
