"""The engine's command line, as one frozen value that renders itself and parses itself.

The operator builds an `EngineArguments` and puts `render()` into the pod; the engine calls `parse()` on what it was
started with. Both read the same field list, so a flag cannot exist on one side only. Spelling follows vLLM.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, NoReturn

from pagefleet_engine.contract.precision import Precision

API_PORT = 8000
CONTROL_PORT = 9000
AUTO: Final = "auto"
TOOL_CALL_PARSERS: Final = (AUTO, "hermes", "llama3_json", "mistral")
"""Forms of tool calls, by the names that vLLM has for them; `auto` finds the model's own."""


class ArgumentError(ValueError):
    """A command line that the engine cannot run with; the message names the flag and the remedy."""


def _flag(default: Any, help_text: str, *, low: float | None = None, high: float | None = None) -> Any:
    return field(default=default, metadata={"help": help_text, "low": low, "high": high})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArguments:
    """Everything an engine is started with. Sizes are bytes, lengths are tokens."""

    model: str = field(metadata={"help": "a GGUF file, a folder with a model in it, or owner/name on a hub"})
    served_model_name: tuple[str, ...] = _flag((), "names that clients may use; the first is the model's id")
    host: str = _flag("0.0.0.0", "address to listen on")
    port: int = _flag(API_PORT, "port of the OpenAI-compatible API", low=1, high=65535)
    control_port: int = _flag(CONTROL_PORT, "port of the control API", low=1, high=65535)
    max_model_len: int | None = _flag(
        None, "longest prompt plus answer; default: what the model was trained for", low=16
    )
    max_num_seqs: int = _flag(32, "capacity: most requests that may ever run at once", low=1, high=4096)
    max_num_active_seqs: int | None = _flag(None, "the cap at start; default: the capacity", low=1, high=4096)
    max_num_batched_tokens: int = _flag(512, "token budget of one step", low=16, high=1_048_576)
    block_size: int = _flag(16, "tokens of a BF16 frame: 8, 16, 32 or 64", low=8, high=64)
    kv_cache_dtype: Precision = _flag(Precision.BF16, "precision of sealed frames: " + ", ".join(Precision))
    kv_cache_memory_bytes: int | None = _flag(None, "a KV pool of exactly this many bytes", low=1)
    gpu_memory_utilization: float = _flag(0.9, "share of the device's memory the engine may use", low=0.05, high=0.99)
    swap_space: float = _flag(0.0, "GiB of host memory for swapped frames", low=0.0, high=4096.0)
    tensor_parallel_size: int = _flag(1, "ranks that share the model", low=1, high=64)
    enable_prefix_caching: bool = _flag(False, "share sealed frames between requests with the same prefix")
    batch_invariant: bool = _flag(False, "make a request's bits independent of its batch, at some speed")
    dtype: str = _flag("auto", "weights and activations: auto, bfloat16 or float32")
    tool_call_parser: str = _flag(AUTO, "how the model writes tool calls: " + ", ".join(TOOL_CALL_PARSERS))
    seed: int = _flag(0, "seed of requests that bring none", low=0, high=2**63 - 1)
    max_num_queued_reqs: int = _flag(1024, "waiting requests beyond which new ones get 429", low=1, high=1_000_000)
    max_num_queued_tokens: int = _flag(
        0,
        "tokens of waiting prompts beyond which new ones get 429; 0: --max-num-queued-reqs times the budget of a step",
        low=0,
    )
    api_key_file: str | None = _flag(
        None, "a file with one API key a line, or a folder of such files; re-read on change"
    )
    control_key_file: str | None = _flag(None, "public keys that sign control tokens; without it, no control API")
    runtime_config_file: str | None = _flag(None, "JSON with the cap, the length and the routes to start with")
    state_dir: str | None = _flag(
        None, "a folder that outlives a restart: keeps the runtime configuration as it was changed"
    )
    drain_timeout: float = _flag(300.0, "seconds that running requests have to finish in after SIGTERM", low=0.0)
    drain_grace: float = _flag(10.0, "seconds in which a draining engine still accepts late arrivals", low=0.0)

    def __post_init__(self) -> None:
        for spec in fields(self):
            _check_bounds(spec.name, getattr(self, spec.name), spec.metadata)
        if self.block_size not in (8, 16, 32, 64):
            raise ArgumentError(f"--block-size {self.block_size}: use 8, 16, 32 or 64")
        if self.dtype not in ("auto", "bfloat16", "float32"):
            raise ArgumentError(f"--dtype {self.dtype}: use auto, bfloat16 or float32")
        if self.tool_call_parser not in TOOL_CALL_PARSERS:
            raise ArgumentError(
                f"--tool-call-parser {self.tool_call_parser}: use one of {', '.join(TOOL_CALL_PARSERS)}"
            )
        if self.max_num_active_seqs is not None and self.max_num_active_seqs > self.max_num_seqs:
            raise ArgumentError(
                f"--max-num-active-seqs {self.max_num_active_seqs} is above the capacity "
                f"--max-num-seqs {self.max_num_seqs}: lower it, or start with a larger capacity"
            )

    @property
    def initial_cap(self) -> int:
        """The cap that the engine starts with."""
        return self.max_num_active_seqs or self.max_num_seqs

    @property
    def queued_tokens(self) -> int:
        """Tokens of prompts that may wait.

        By default computing all of them takes as many full steps as requests may wait, whatever their lengths.
        """
        return self.max_num_queued_tokens or self.max_num_queued_reqs * self.max_num_batched_tokens

    def render(self) -> list[str]:
        """The arguments of a container, without those that hold their default; `parse` returns an equal value."""
        words = ["--model", self.model]
        for spec in fields(self)[1:]:
            value = getattr(self, spec.name)
            if value == spec.default:
                continue
            words.append(flag_name(spec.name))
            if isinstance(value, tuple):
                words.extend(value)
            elif value is not True:
                words.append(str(value))
        return words


def flag_name(field_name: str) -> str:
    """`max_num_seqs` -> `--max-num-seqs`."""
    return "--" + field_name.replace("_", "-")


def parse(argv: Sequence[str]) -> EngineArguments:
    """Parse a command line. Raises `ArgumentError` with one line for anything that is wrong in it."""
    parser = build_parser()
    values = vars(parser.parse_args(list(argv)))
    if "served_model_name" in values:
        values["served_model_name"] = tuple(values["served_model_name"])
    return EngineArguments(**values)


def build_parser() -> argparse.ArgumentParser:
    """The parser behind `parse`, for `--help` and the reference page."""
    parser = _Parser(prog="pagefleet-engine", argument_default=argparse.SUPPRESS, allow_abbrev=False)
    parser.add_argument("--model", required=True, help=EngineArguments.__dataclass_fields__["model"].metadata["help"])
    for spec in fields(EngineArguments)[1:]:
        help_text = f"{spec.metadata['help']} (default: {_shown(spec.default)})"
        if isinstance(spec.default, bool):
            parser.add_argument(flag_name(spec.name), action="store_true", help=help_text)
        elif isinstance(spec.default, tuple):
            parser.add_argument(flag_name(spec.name), nargs="+", metavar="NAME", help=help_text)
        else:
            parser.add_argument(flag_name(spec.name), type=_converter(str(spec.type)), metavar="X", help=help_text)
    return parser


class _Parser(argparse.ArgumentParser):
    """argparse that raises one line instead of printing its usage and leaving."""

    def error(self, message: str) -> NoReturn:
        raise ArgumentError(f"{message}; see pagefleet-engine --help")


def _converter(type_name: str) -> Any:
    if type_name.startswith("int"):
        return int
    if type_name == "float":
        return float
    if type_name == "Precision":
        return _precision
    return str


def _precision(text: str) -> Precision:
    try:
        return Precision(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no precision: use {', '.join(Precision)}") from None


def _shown(default: Any) -> str:
    return "none" if default is None or default == () else str(default)


def _check_bounds(name: str, value: Any, metadata: Any) -> None:
    low, high = metadata.get("low"), metadata.get("high")
    if value is None or isinstance(value, bool):
        return
    if low is not None and not value >= low:
        raise ArgumentError(f"{flag_name(name)} {value}: must be at least {low:g}")
    if high is not None and not value <= high:
        raise ArgumentError(f"{flag_name(name)} {value}: must be at most {high:g}")
