"""Contexts side by side: in this process, or in workers that hold a copy of the model each.

Contexts do not depend on each other, and one context keeps hardly more than one core busy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch

from pagefleet_cli.bench.models import Model
from pagefleet_cli.errors import CommandError

P = ParamSpec("P")
T = TypeVar("T")
Load = Callable[[], Model]
"""Opens the model; a worker calls it, too, so it has to be importable there."""


class Workers(Protocol):
    """Who runs functions of the model."""

    def submit(
        self, function: Callable[Concatenate[Model, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Callable[[], T]:
        """Begin, now or later; the result is there when the returned function is called."""
        ...


class Here:
    """This process: everything is computed when its result is asked for."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def submit(
        self, function: Callable[Concatenate[Model, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Callable[[], T]:
        return partial(function, self._model, *args, **kwargs)


class Processes:
    """Other processes, in the order of submission. Arguments and results are pickled: numpy arrays, no tensors."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def submit(
        self, function: Callable[Concatenate[Model, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Callable[[], T]:
        work: Callable[[Model], T] = partial(_with_model_first, function, args, kwargs)
        return self._pool.submit(_run, work).result


@contextmanager
def open_workers(load: Load, model: Model, count: int) -> Iterator[Workers]:
    """`count` processes, or this one when it is 1. Raises `CommandError` when a worker dies."""
    if count == 1:
        yield Here(model)
        return
    threads = max(1, torch.get_num_threads() // count)
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_begin, initargs=(load, threads))
    try:
        yield Processes(pool)
    except BrokenProcessPool as error:
        raise CommandError("--workers: a worker process has ended, perhaps for want of memory; use fewer") from error
    finally:
        pool.shutdown(cancel_futures=True)


_model: list[Model] = []
"""A worker's own copy, from its start on."""


def _begin(load: Load, threads: int) -> None:
    Thread(target=_leave_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    _model.append(load())


def _leave_with_parent() -> None:
    """A worker holds a whole model: it must not stay behind when the command is killed."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _run(work: Callable[[Model], T]) -> T:
    return work(_model[0])


def _with_model_first(function: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any], model: Model) -> T:
    return function(model, *args, **kwargs)
