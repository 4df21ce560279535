"""The remedies in one look, in their fixed order, so that none undoes another.

    1. tune      cut where the pressure is; raise where there is a queue and room
    2. scale     up only when a raise does not help; down only while nothing is under pressure
    3. tune once more without raises when the number of replicas changes: one thing grows or shrinks at a time

The precision of routes is decided beside it, from counts of answers and not from windows of time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from pagefleet_operator.api.remedy_spec import Mode
from pagefleet_operator.api.status import Decision
from pagefleet_operator.remedies.adopt import start_cap
from pagefleet_operator.remedies.fleet import FleetView
from pagefleet_operator.remedies.memory import Memory, TuneMemory
from pagefleet_operator.remedies.outlook import Outlook
from pagefleet_operator.remedies.scale import Scaled, decide_replicas
from pagefleet_operator.remedies.tune import Tuned, decide_caps
from pagefleet_operator.remedies.words import Change


def look(view: FleetView, memory: Memory) -> Outlook:
    """What should be so from now on, and why. A paused service is left as it is."""
    if view.paused:
        return _nothing(view, memory)
    mode = view.rules.tuning.mode
    tuned = _tune(view, memory, mode)
    scaled = decide_replicas(view, memory.scale, tuned)
    if scaled.replicas != view.replicas and tuned.raised:
        tuned = _tune(view, memory, mode, raises=False)
    tune = tuned.memory if mode is Mode.AUTO else tuned.adopted
    caps = {pod.name: tune.caps[pod.name].desired for pod in view.ready if pod.name in tune.caps}
    decisions, advised = _decide(view, memory, mode, tuned, scaled)
    return Outlook(
        caps=caps if mode is Mode.AUTO else {},
        start_cap=start_cap(view, caps) if mode is Mode.AUTO and caps else None,
        max_model_len=tune.length.desired if mode is Mode.AUTO else None,
        replicas=scaled.replicas,
        decisions=decisions,
        holds=(*tuned.holds, *scaled.holds),
        memory=Memory(
            tune=tune,
            scale=scaled.memory,
            advised=advised,
            restored={name: known for name, known in memory.restored.items() if name not in tune.caps},
        ),
    )


def _tune(view: FleetView, memory: Memory, mode: Mode, *, raises: bool = True) -> Tuned:
    """In Advisory mode nothing is hoped for: what is not applied cannot help."""
    if mode is Mode.OFF:
        tune = TuneMemory()
        return Tuned(changes=(), holds=(), memory=tune, adopted=tune, pressed=False, hopeful=False, raised=False)
    tuned = decide_caps(view, memory, raises=raises)
    return tuned if mode is Mode.AUTO else replace(tuned, hopeful=False, raised=False, cut_lately=False)


def _decide(
    view: FleetView, memory: Memory, mode: Mode, tuned: Tuned, scaled: Scaled
) -> tuple[tuple[Decision, ...], Mapping[str, float]]:
    """Decisions for status, and when each piece of advice was given: it is not repeated at once."""
    advised = {key: at for key, at in memory.advised.items() if view.now_s - at < view.settings.advice_every_s}
    decisions: list[Decision] = []
    for change, advisory in _with_mode(tuned.changes, mode is Mode.ADVISORY, scaled, view):
        key = f"{change.remedy}/{change.subject}/{change.reason}"
        if advisory and key in advised:
            continue
        if advisory:
            advised[key] = view.now_s
        decisions.append(change.decided(view, advisory=advisory))
    return tuple(decisions), advised


def _with_mode(
    tuned: Iterable[Change], advisory: bool, scaled: Scaled, view: FleetView
) -> Iterator[tuple[Change, bool]]:
    for change in tuned:
        yield change, advisory
    for change in scaled.changes:
        yield change, scaled.replicas == view.replicas


def _nothing(view: FleetView, memory: Memory) -> Outlook:
    return Outlook(
        caps={}, start_cap=None, max_model_len=None, replicas=view.replicas, decisions=(), holds=(), memory=memory
    )
