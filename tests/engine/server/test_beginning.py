"""What an engine begins with: command line, start file, and what was changed before a restart."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest

from pagefleet_engine.api import ModelInfo
from pagefleet_engine.contract.arguments import EngineArguments
from pagefleet_engine.contract.control import RouteConfig, RuntimeConfig, RuntimeStart
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.errors import StartupError
from pagefleet_engine.server.control.beginning import bounds_of, first_config, restore
from pagefleet_engine.server.control.start_file import precisions_in_use, read_start
from pagefleet_engine.server.control.state_file import NAME, StateFile

BF16, FP8, INT4 = Precision.BF16, Precision.FP8_E4M3, Precision.INT4
DEFAULT = RouteConfig(name="default", model="smol", precision=FP8)
TOOLS = RouteConfig(name="tools", model="smol-tools", precision=FP8, control_share=0.05)
INFO = ModelInfo(id="smol.gguf", max_model_len=512, vocab_size=260, eos_token_ids=(257,))
ARGUMENTS = EngineArguments(model="m", max_num_seqs=8, max_num_active_seqs=6, max_num_batched_tokens=64)
FIRST = RuntimeConfig(generation=1, cap=6, max_model_len=512, max_num_batched_tokens=64, routes=(DEFAULT, TOOLS))
LATER = FIRST.model_copy(
    update={"generation": 7, "cap": 3, "routes": (DEFAULT, TOOLS.model_copy(update={"precision": BF16}))}
)


def arguments_with(path) -> EngineArguments:
    return replace(ARGUMENTS, runtime_config_file=str(path))


def routes_json(*routes: RouteConfig) -> list:
    return [route.model_dump(mode="json") for route in routes]


# sentence → (text of the file, what is read)
STARTS = {
    "an annotation that nobody has set": ("", RuntimeStart()),
    "white space": (" \n", RuntimeStart()),
    "nothing in it": ("{}", RuntimeStart()),
    "a cap": ('{"cap": 3}\n', RuntimeStart(cap=3)),
    "all of it": (
        json.dumps({"cap": 8, "max_model_len": 256, "routes": routes_json(DEFAULT, TOOLS)}),
        RuntimeStart(cap=8, max_model_len=256, routes=(DEFAULT, TOOLS)),
    ),
}


@pytest.mark.parametrize(("text", "want"), STARTS.values(), ids=STARTS.keys())
def test_start_files(tmp_path, text, want):
    path = tmp_path / "start"
    path.write_text(text)
    assert read_start(arguments_with(path)) == want


# sentence → (bytes of the file, the line after flag and path)
WRONG_STARTS = {
    "no JSON": (b"cap: 3", "invalid JSON: expected value at line 1 column 1"),
    "half of it": (b'{"cap": 3', "invalid JSON: EOF while parsing an object at line 1 column 9"),
    "a list": (b"[]", "input should be an object"),
    "an unknown field": (b'{"capp": 3}', "capp: extra inputs are not permitted"),
    "a cap above the capacity": (b'{"cap": 9}', "cap: 9: must be 1 to 8 (--max-num-seqs)"),
    "a cap of 0": (b'{"cap": 0}', "cap: 0: must be 1 to 8 (--max-num-seqs)"),
    "a cap as text": (b'{"cap": "3"}', "cap: input should be a valid integer"),
    "no routes": (b'{"routes": []}', "routes: tuple should have at least 1 item after validation, not 0"),
    "a route without a precision": (
        b'{"routes": [{"name": "default", "model": "m"}]}',
        "routes.0.precision: is required",
    ),
    "default is missing": (
        json.dumps({"routes": routes_json(TOOLS)}).encode(),
        "routes.0.name: must be 'default', the route of the model itself",
    ),
    "an alias twice": (
        json.dumps({"routes": routes_json(DEFAULT, TOOLS.model_copy(update={"model": "smol"}))}).encode(),
        "routes.1.model: 'smol' is there twice",
    ),
    "too large": (b" " * 300_000, "is larger than 262144 bytes"),
}


@pytest.mark.parametrize(("content", "line"), WRONG_STARTS.values(), ids=WRONG_STARTS.keys())
def test_wrong_start_files_name_the_flag_and_the_field(tmp_path, content, line):
    path = tmp_path / "start"
    path.write_bytes(content)
    with pytest.raises(StartupError) as caught:
        read_start(arguments_with(path))
    assert str(caught.value) == f"--runtime-config-file {path}: {line}"


def test_a_start_file_that_is_not_there_is_a_wrong_path(tmp_path):
    with pytest.raises(StartupError, match="No such file or directory: give the path of a file, which may be empty"):
        read_start(arguments_with(tmp_path / "none"))


def test_the_start_file_wins_over_the_command_line():
    assert first_config(ARGUMENTS, RuntimeStart(), "smol", INFO).routes == (
        RouteConfig(name="default", model="smol", precision=BF16),
    )
    assert first_config(ARGUMENTS, RuntimeStart(routes=(DEFAULT, TOOLS)), "smol", INFO) == FIRST
    start = RuntimeStart(cap=2, max_model_len=100, routes=(DEFAULT, TOOLS))
    want = FIRST.model_copy(update={"cap": 2, "max_model_len": 100})
    assert first_config(ARGUMENTS, start, "smol", INFO) == want


# sentence → (start, message)
IMPOSSIBLE = {
    "a longer context than the model's": (RuntimeStart(max_model_len=513), "max_model_len: 513: must be 16 to 512"),
    "a precision that cannot be kept": (
        RuntimeStart(routes=(DEFAULT,)),
        "routes.0.precision: fp8_e4m3: this engine can keep KV in bf16 only",
    ),
}


@pytest.mark.parametrize(("start", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_starts_that_this_model_cannot_do(start, message):
    with pytest.raises(StartupError, match=message):
        first_config(arguments_with("start"), start, "smol", replace(INFO, longest_kv={BF16: 512}))


def test_precisions_in_use():
    fp8 = replace(ARGUMENTS, kv_cache_dtype=FP8)
    assert precisions_in_use(fp8, RuntimeStart(), 512) == {FP8}
    assert precisions_in_use(fp8, RuntimeStart(routes=(DEFAULT, TOOLS)), 512) == {FP8}
    other = TOOLS.model_copy(update={"precision": BF16})
    assert precisions_in_use(fp8, RuntimeStart(routes=(DEFAULT, other)), 512) == {FP8, BF16}
    long = DEFAULT.model_copy(update={"max_context": 511, "control_precision": INT4})
    assert precisions_in_use(fp8, RuntimeStart(routes=(long,)), 512) == {FP8, INT4}
    assert precisions_in_use(fp8, RuntimeStart(routes=(long,)), 511) == {FP8}


# sentence → (what was saved, what it goes on with, how each ignored line begins)
SAVED = {
    "nothing": (None, FIRST, ()),
    "a later generation": (LATER, LATER, ()),
    "a cap above this start's capacity": (
        LATER.model_copy(update={"cap": 64}),
        LATER.model_copy(update={"cap": 8}),
        ("cap 64: this engine takes 1 to 8; it goes on with 8",),
    ),
    "other aliases": (
        LATER.model_copy(update={"routes": (DEFAULT,)}),
        LATER.model_copy(update={"routes": FIRST.routes}),
        ("routes: 'tools' is missing",),
    ),
    "another model's routes": (
        LATER.model_copy(update={"routes": (DEFAULT.model_copy(update={"model": "else"}), TOOLS)}),
        LATER.model_copy(update={"routes": FIRST.routes}),
        ("routes.0.model: must stay 'smol'",),
    ),
}


@pytest.mark.parametrize(("saved", "want", "begins"), SAVED.values(), ids=SAVED.keys())
def test_restoring(saved, want, begins):
    config, ignored = restore(FIRST, saved, bounds_of(ARGUMENTS, INFO))
    assert config == want
    assert [line.startswith(begin) for line, begin in zip(ignored, begins, strict=True)] == [True] * len(begins)


def test_what_was_written_is_read(tmp_path):
    file = StateFile(tmp_path / "new")
    assert file.read() is None
    for config in (FIRST, LATER):
        file.write(config)
        assert StateFile(tmp_path / "new").read() == config
    assert [path.name for path in (tmp_path / "new").iterdir()] == [NAME]


# sentence → content
UNUSABLE = {
    "torn": LATER.model_dump_json()[:-20].encode(),
    "empty": b"",
    "of something else": b'{"generation": 3, "name": "x"}',
    "no text": bytes(range(256)),
    "generation 0": LATER.model_dump_json().replace('"generation":7', '"generation":0').encode(),
}


@pytest.mark.parametrize("content", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_a_state_file_of_no_use_is_ignored_in_one_line(tmp_path, caplog, content):
    (tmp_path / NAME).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert StateFile(tmp_path).read() is None
    assert len(caplog.records) == 1
    assert caplog.records[0].message.startswith(f"--state-dir: {tmp_path / NAME} is ignored: ")
    assert "\n" not in caplog.records[0].message


def test_a_part_that_was_being_written_is_not_read(tmp_path):
    file = StateFile(tmp_path)
    file.write(LATER)
    file.path.with_suffix(".new").write_bytes(b'{"gener')
    assert file.read() == LATER


def test_a_disk_that_refuses_costs_a_line(tmp_path, caplog):
    file = StateFile(tmp_path)
    file.path.with_suffix(".new").mkdir()
    with caplog.at_level(logging.WARNING):
        file.write(LATER)
    assert caplog.records[0].message == "--state-dir: generation 7 is not kept: Is a directory"


def test_a_state_dir_that_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="give a folder that can be written"):
        StateFile(tmp_path / "file")
