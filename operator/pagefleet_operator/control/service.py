"""One service through one look: scrapes in, targets and a view out. Pure; `loop` does the asking and the setting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Literal

from pagefleet_engine.contract.metrics import Metric
from pagefleet_operator.api.conditions import bounded
from pagefleet_operator.api.scalars import MAX_SHORT
from pagefleet_operator.api.status import MAX_DECISIONS, MAX_NEXT, Decision, Remedy
from pagefleet_operator.api.v1alpha1 import LLMServiceSpec
from pagefleet_operator.control.numbers import measure
from pagefleet_operator.control.pace import look_again_after
from pagefleet_operator.control.routes import RoutesOutlook, look_at_routes, reset_routes, restore_routes
from pagefleet_operator.control.setter import Reported
from pagefleet_operator.control.targets import Target, is_compared, routes_for
from pagefleet_operator.control.view import ControlView, PodView, decided_replicas, full_lengths
from pagefleet_operator.observe import Observation
from pagefleet_operator.pods import PodObservation
from pagefleet_operator.remedies.adopt import middle
from pagefleet_operator.remedies.compose import look
from pagefleet_operator.remedies.fleet import FleetView, ReadyPod, RoomNeed, Rules, StartingPod
from pagefleet_operator.remedies.memory import Memory, rebuild_memory
from pagefleet_operator.remedies.outlook import Outlook
from pagefleet_operator.remedies.precision.memory import Memory as RouteMemory
from pagefleet_operator.remedies.precision.memory import Moment
from pagefleet_operator.remedies.readings import Readings, ScrapeFailed
from pagefleet_operator.remedies.samples import number
from pagefleet_operator.remedies.settings import LoopSettings
from pagefleet_operator.remedies.what_next import what_next
from pagefleet_operator.remedies.window import EngineStart, PodWindow, open_window

PUBLISH_EVERY_S: Final = 30.0
"""How often numbers that move all the time may change what is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """What is remembered of a service between two looks."""

    uid: str  # of the service: one that is made again under the same name is another one
    memory: Memory
    routes: Mapping[str, RouteMemory]
    decisions: tuple[Decision, ...]  # newest first
    windows: Mapping[str, PodWindow] = field(default_factory=dict)  # by pod
    starting: Mapping[str, float] = field(default_factory=dict)  # pod that does not serve yet -> first seen, monotonic
    model: str | None = None  # its address; routes of another model are new routes
    room: RoomNeed | None = None  # what a route needs to move
    reset_done: str | None = None  # the value of the annotation that was followed last
    last_change: datetime | None = None
    view: ControlView | None = None
    published_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What others have to say."""

    alert: str | None = None  # asks for one replica more
    foreign_autoscaler: str | None = None
    unset: Mapping[str, str] = field(default_factory=dict)  # pod -> why it could not be set after the last look


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What one look leads to."""

    state: ServiceState
    targets: Mapping[str, Target]  # by pod
    decisions: tuple[Decision, ...] = ()  # all that are new, oldest first; the state has the last few
    reported: Mapping[str, Reported]  # by pod, what its engine has now
    again_after_s: float | None  # when to look again, where the usual pace is too slow
    alert_followed: bool = False  # a step up was made while an alert asked for one


def begin(observed: Observation, spec: LLMServiceSpec, now: Moment) -> ServiceState:
    """The state after a start of the operator, from what it wrote before."""
    status = observed.status
    return ServiceState(
        uid=observed.owner.uid,
        memory=rebuild_memory(status, full_lengths(spec, observed.pods)),
        routes=restore_routes(spec, status, now),
        decisions=status.decisions,
        reset_done=status.precision_reset,
        last_change=status.tuning.last_change_time if status.tuning else None,
    )


def serving(observed: Observation) -> tuple[PodObservation, ...]:
    """The pods that get requests: those that are measured and set."""
    return tuple(pod for pod in observed.pods if pod.ready and not pod.draining and pod.ip is not None)


def step(
    state: ServiceState,
    observed: Observation,
    spec: LLMServiceSpec,
    scrapes: Mapping[str, Readings | ScrapeFailed],
    now: Moment,
    settings: LoopSettings,
    hints: Hints = Hints(),
) -> Looked:
    """One look. `scrapes` has an entry for every serving pod."""
    windows = _windows(state, observed, scrapes, now, settings)
    state = replace(state, starting=_starting(state, observed, now))
    fleet = _fleet_view(state, observed, spec, windows, now, settings, hints)
    outlook = look(fleet, state.memory)
    asked = state.reset_done if spec.paused else _annotated(observed)
    memories, resets = reset_routes(spec, _routes_of(state, spec), asked, state.reset_done, now)
    usage = [
        value
        for window in windows.values()
        if (value := _gauge(window, Metric.KV_CACHE_USAGE, now.monotonic)) is not None
    ]
    pods = {name: _pod_view(window, now.monotonic, hints.unset.get(name)) for name, window in windows.items()}
    in_flight = sum(pod.in_flight or 0 for pod in pods.values())
    compared = [windows[pod.name] for pod in serving(observed) if is_compared(pod, spec)]
    routes = look_at_routes(spec, memories, compared, usage, _begun(windows.values(), now, settings), in_flight, now)
    new = (*outlook.decisions, *resets, *routes.decisions)
    after = replace(
        state,
        memory=outlook.memory,
        routes=routes.memories,
        room=routes.room,
        model=spec.model.uri,
        decisions=(*reversed(new), *state.decisions)[:MAX_DECISIONS],
        windows=windows,
        reset_done=asked,
        last_change=_last_change(new) or state.last_change,
    )
    view = _view(after, spec, fleet, outlook, routes, pods)
    if _is_due(state, view, now):
        # What comes next is said only where it is shown: it takes a look of its own.
        sentences = (*what_next(fleet, outlook.memory), *routes.next)[:MAX_NEXT]
        after = replace(after, view=replace(view, next=sentences), published_s=now.monotonic)
    return Looked(
        state=after,
        targets=_targets(observed, spec, outlook, routes),
        decisions=new,
        reported={name: reported(window, now.monotonic) for name, window in windows.items()},
        again_after_s=look_again_after(routes.memories, compared, settings),
        alert_followed=hints.alert is not None and any(map(_adds_replicas, outlook.decisions)),
    )


def _adds_replicas(decision: Decision) -> bool:
    return decision.remedy is Remedy.SCALE and int(decision.to) > int(decision.from_)


def _annotated(observed: Observation) -> str | None:
    """What a person's annotation asks for, no longer than the status may show it."""
    return None if observed.reset_precision is None else bounded(observed.reset_precision, MAX_SHORT)


def _routes_of(state: ServiceState, spec: LLMServiceSpec) -> Mapping[str, RouteMemory]:
    """What is remembered of the routes; nothing of another model's answers counts for this one."""
    return (
        state.routes if state.model in (None, spec.model.uri) else {route.name: RouteMemory() for route in spec.routes}
    )


def _windows(
    state: ServiceState,
    observed: Observation,
    scrapes: Mapping[str, Readings | ScrapeFailed],
    now: Moment,
    settings: LoopSettings,
) -> dict[str, PodWindow]:
    windows = {}
    for pod in serving(observed):
        start = EngineStart(uid=pod.uid, restarts=pod.restarts)
        window = state.windows.get(pod.name) or open_window(start, settings)
        windows[pod.name] = window.looked(now.monotonic, scrapes[pod.name], start)
    return windows


def _starting(state: ServiceState, observed: Observation, now: Moment) -> dict[str, float]:
    """Since when each pod is known that does not serve yet; the wall clock may jump, and knows nothing of it."""
    waiting = (pod for pod in observed.pods if not (pod.ready or pod.leaving or pod.draining or pod.gone))
    return {pod.name: state.starting.get(pod.name, now.monotonic) for pod in waiting}


def _fleet_view(
    state: ServiceState,
    observed: Observation,
    spec: LLMServiceSpec,
    windows: Mapping[str, PodWindow],
    now: Moment,
    settings: LoopSettings,
    hints: Hints,
) -> FleetView:
    return FleetView(
        now_s=now.monotonic,
        time=now.wall,
        rules=Rules.of(spec),
        replicas=decided_replicas(spec, observed.status.desired_replicas, state.view),
        ready=tuple(
            ReadyPod(name=pod.name, window=windows[pod.name], longest=pod.max_model_len) for pod in serving(observed)
        ),
        starting=tuple(StartingPod(name=name, age_s=now.monotonic - at_s) for name, at_s in state.starting.items()),
        draining=tuple(pod.name for pod in observed.pods if pod.draining or pod.leaving),
        foreign_autoscaler=hints.foreign_autoscaler,
        alert=hints.alert,
        room=state.room,
        paused=spec.paused,
        settings=settings,
    )


def _begun(windows: Iterable[PodWindow], now: Moment, settings: LoopSettings) -> Counter[tuple[str, str]]:
    """Prompts of the last minute on all pods, by route and precision."""
    since_s = now.monotonic - settings.window_s
    return sum((window.begun(since_s) for window in windows), Counter())


def _view(
    state: ServiceState,
    spec: LLMServiceSpec,
    fleet: FleetView,
    outlook: Outlook,
    routes: RoutesOutlook,
    pods: Mapping[str, PodView],
) -> ControlView:
    """What the reconcile gets to see of this look."""
    load, usage = measure(state.windows.values(), fleet.now_s)
    return ControlView(
        uid=state.uid,
        start_cap=outlook.start_cap,
        start_length=outlook.max_model_len,
        overrides=routes.overrides,
        replicas=outlook.replicas,
        cap=outlook.start_cap or middle(_known(pods, "cap")) or spec.engine.max_num_seqs.initial_cap,
        max_model_len=outlook.max_model_len or min(_known(pods, "max_model_len"), default=spec.engine.max_model_len),
        last_change=state.last_change,
        pods=pods,
        load=load,
        kv_usage=usage,
        routes=routes.statuses,
        facts=routes.facts,
        decisions=state.decisions,
        holds=outlook.holds,
        reset_done=state.reset_done,
        foreign_autoscaler=fleet.foreign_autoscaler,
    )


def _known(pods: Mapping[str, PodView], field: Literal["cap", "max_model_len"]) -> list[int]:
    """What engines have, for where nothing says what they should have."""
    return sorted(value for pod in pods.values() if (value := getattr(pod, field)) is not None)


def _pod_view(window: PodWindow, now_s: float, unset: str | None) -> PodView:
    cap, length = _gauge(window, Metric.CAP, now_s), _gauge(window, Metric.MAX_MODEL_LEN, now_s)
    parts = (Metric.REQUESTS_RUNNING, Metric.REQUESTS_WAITING, Metric.REQUESTS_SWAPPED)
    counts = [_gauge(window, metric, now_s) for metric in parts]
    known = [int(count) for count in counts if count is not None]
    return PodView(
        cap=None if cap is None else int(cap),
        max_model_len=None if length is None else int(length),
        in_flight=sum(known) if len(known) == len(parts) else None,
        trouble=window.failed.why if window.failed else None,
        unset=unset,
    )


def reported(window: PodWindow, now_s: float) -> Reported:
    """Of this very look: an older one says nothing about a change made since."""
    if window.failed is not None:
        return Reported()
    cap, length = _gauge(window, Metric.CAP, now_s), _gauge(window, Metric.MAX_MODEL_LEN, now_s)
    return Reported(
        cap=None if cap is None else int(cap),
        max_model_len=None if length is None else int(length),
    )


def _gauge(window: PodWindow, metric: Metric, now_s: float) -> float | None:
    return number(window.gauge(metric, now_s))


def _last_change(decisions: tuple[Decision, ...]) -> datetime | None:
    times = [decision.time for decision in decisions if decision.remedy is Remedy.TUNE and not decision.advisory]
    return max(times, default=None)


def _targets(observed: Observation, spec: LLMServiceSpec, outlook: Outlook, routes: RoutesOutlook) -> dict[str, Target]:
    if spec.paused:
        return {}
    return {
        pod.name: Target(
            cap=outlook.caps.get(pod.name),
            max_model_len=_length_for(pod, outlook.max_model_len),
            routes=routes_for(pod, spec, routes.overrides),
        )
        for pod in serving(observed)
    }


def _length_for(pod: PodObservation, wanted: int | None) -> int | None:
    """An engine takes no length beyond the one that it was started for, and then nothing of the whole change."""
    return wanted if wanted is None or pod.max_model_len is None else min(wanted, pod.max_model_len)


def _is_due(state: ServiceState, view: ControlView, now: Moment) -> bool:
    """Whether to show the view: with every real change, and twice a minute for what moves all the time."""
    old, published_s = state.view, state.published_s
    if old is None or published_s is None or now.monotonic - published_s >= PUBLISH_EVERY_S:
        return True
    return view.essence() != old.essence()
