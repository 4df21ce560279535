"""The result of `bench quality` as a picture: KLD by position and by turn. matplotlib is loaded here only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pagefleet_cli.bench.results import Curve, QualityResult
from pagefleet_cli.errors import CommandError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENDINGS = (".svg", ".png", ".pdf")


def check_ending(path: Path) -> None:
    """Raises `CommandError` before anything is measured."""
    if path.suffix not in ENDINGS:
        raise CommandError(f"--plot {path}: the name has to end in one of {', '.join(ENDINGS)}")


def write_plot(path: Path, result: QualityResult) -> None:
    """Two panels, both with a logarithmic KLD. Raises `CommandError`."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "pagefleet"
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    _draw(left, list(result.positions), result.by_position)
    left.set(xlabel="position in one context, tokens", ylabel="KLD against BF16 KV, nat", yscale="log")
    _draw(right, list(range(1, len(result.turn_tokens) + 1)), result.by_turn)
    right.set(xlabel=f"turn, mean of {result.num_conversations} conversations")
    for axes, curves in ((left, result.by_position), (right, result.by_turn)):
        if curves:
            axes.legend()
            break
    figure.suptitle(f"{result.model}, {result.dtype} activations")
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise CommandError(f"--plot {path}: {error.strerror}") from error
    finally:
        pyplot.close(figure)


def _draw(axes: Axes, x: list[int], curves: tuple[Curve, ...]) -> None:
    for curve in curves:
        axes.plot(x, curve.kld, marker="o", markersize=3, label=str(curve.precision))
    axes.grid(alpha=0.3)
