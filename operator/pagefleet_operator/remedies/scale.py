"""The second remedy: replicas. Up when the targets are missed and no cap can help, down when fewer would hold them.

A need and a surplus are both turned into a wanted number at every look. A step up follows the lowest number of
`scaleUp.stabilizationWindowSeconds`, a step down the highest of `scaleDown`'s, as HorizontalPodAutoscaler does it; both
within the policies. A look that knows too little wants what is there. One step at a time: pods that start are capacity
on its way, for a bounded time, and pods that leave are waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pagefleet_operator.api.remedy_spec import AutoscalingSpec, Mode
from pagefleet_operator.api.status import Remedy
from pagefleet_operator.remedies.coarse import clock
from pagefleet_operator.remedies.demand import Demand, Need, find_need, measure_demand, measurements_of
from pagefleet_operator.remedies.fewer import fewest_enough
from pagefleet_operator.remedies.fleet import FleetView
from pagefleet_operator.remedies.make_room import replica_for_room
from pagefleet_operator.remedies.memory import ScaleMemory
from pagefleet_operator.remedies.outlook import Hold
from pagefleet_operator.remedies.policies import highest_allowed, longest_period_s, lowest_allowed
from pagefleet_operator.remedies.reasons import HoldReason, RemedyReason
from pagefleet_operator.remedies.settings import LoopSettings
from pagefleet_operator.remedies.tune import Tuned
from pagefleet_operator.remedies.turns import may_move, may_move_at, moved
from pagefleet_operator.remedies.words import Change, count


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """What one look leads to."""

    replicas: int
    changes: tuple[Change, ...] = ()
    holds: tuple[Hold, ...] = ()
    memory: ScaleMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One look at one service with autoscaling."""

    view: FleetView
    rules: AutoscalingSpec
    settings: LoopSettings
    tuned: Tuned
    memory: ScaleMemory

    @property
    def now_s(self) -> float:
        return self.view.now_s

    def hold(self, reason: HoldReason, message: str) -> Scaled:
        found = Hold(remedy=Remedy.SCALE, reason=reason, message=message)
        return Scaled(replicas=self.view.replicas, holds=(found,), memory=self.memory)


def decide_replicas(view: FleetView, memory: ScaleMemory, tuned: Tuned) -> Scaled:
    """The number of replicas from now on."""
    rules = view.rules.autoscaling
    if rules is None:
        return Scaled(replicas=view.replicas, memory=ScaleMemory())
    settings = view.settings
    case = _Case(view=view, rules=rules, settings=settings, tuned=tuned, memory=_observe(view, memory, settings))
    if view.foreign_autoscaler is not None:
        why = f"{view.foreign_autoscaler} scales this service, too: remove it, or remove autoscaling from the spec"
        return case.hold(HoldReason.FOREIGN_AUTOSCALER, why)
    bounded = _keep_bounds(case)
    if bounded is not None:
        return bounded
    if rules.mode is Mode.OFF:
        return Scaled(replicas=view.replicas, memory=ScaleMemory())
    return _decide(case)


def _decide(case: _Case) -> Scaled:
    since = max(case.now_s - case.settings.window_s, case.memory.settled_s or 0.0)
    demand = measure_demand(case.view, case.settings, since)
    need = find_need(case.view, demand, case.settings) or replica_for_room(case.view)
    need = need if _is_measured(case, since) else None
    if need is not None or case.view.alert is not None:
        troubled_s = case.memory.troubled_s if case.memory.troubled_s is not None else case.now_s
        case = replace(case, memory=replace(case.memory, troubled_s=troubled_s))
        return _up(case, demand, need)
    case = replace(case, memory=replace(case.memory, troubled_s=None))
    return _down(case, demand)


def _up(case: _Case, demand: Demand, need: Need | None) -> Scaled:
    view = case.view
    wanted = max(view.replicas + 1, need.replicas if need else 0)
    case = _want(case, wanted)
    if pending := _pending(case):
        return case.hold(HoldReason.REPLICA_STARTING, f"{pending}: no further step for the same demand")
    if view.alert is None and (waits_for := _tuning_first(case, need)):
        return case.hold(HoldReason.TUNING_FIRST, f"{waits_for}: replicas wait for it")
    window_s = case.rules.behavior.scale_up.stabilization_window_seconds
    watched_s = case.now_s - _known(case.memory.since_s, case.now_s)
    steady = min(_wants_since(case, window_s)) if watched_s >= window_s else view.replicas
    allowed = highest_allowed(view.replicas, case.rules.behavior.scale_up, case.memory.steps, case.now_s)
    after = min(steady if view.alert is None else wanted, allowed, case.rules.max_replicas)
    if after <= view.replicas:
        return _not_up(case, steady)
    sentence = need.sentence if need else f"the alert {view.alert} asks for capacity"
    reason = need.reason if need else RemedyReason.ALERT_FIRED
    return _step(case, after, reason, sentence, demand)


def _tuning_first(case: _Case, need: Need | None) -> str | None:
    """A change of caps that may yet help, and whose time is not over."""
    if case.tuned.cut_lately and need is not None and need.reason is RemedyReason.TOKENS_TOO_SLOW:
        return "a lower cap may make tokens faster"
    troubled_for_s = case.now_s - _known(case.memory.troubled_s, case.now_s)
    if case.tuned.hopeful and troubled_for_s < case.settings.patience_s:
        return "a higher cap may end the queue"
    return None


def _not_up(case: _Case, steady: int) -> Scaled:
    most, replicas = case.rules.max_replicas, case.view.replicas
    if replicas >= most:
        return case.hold(HoldReason.AT_MAXIMUM, f"more is needed, and {count(most, 'replica')} is maxReplicas")
    if steady <= replicas:
        window = case.rules.behavior.scale_up.stabilization_window_seconds
        return case.hold(HoldReason.STABILIZING, f"more is needed, but not for all of the last {window} s")
    return case.hold(HoldReason.POLICY_LIMIT, "more is needed, and behavior.scaleUp allows no step now")


def _down(case: _Case, demand: Demand) -> Scaled:
    view, least = case.view, case.rules.min_replicas
    if view.replicas <= least:
        return Scaled(replicas=view.replicas, memory=_want(case, view.replicas).memory)
    blocked = _pending(case) or (f"{view.draining[0]} still drains" if view.draining else None)
    if blocked:
        reason = HoldReason.POD_DRAINING if view.draining else HoldReason.REPLICA_STARTING
        return _want(case, view.replicas).hold(reason, blocked)
    if len(view.ready) < view.replicas:
        message = f"{len(view.ready)} of {view.replicas} replicas are ready: none is removed"
        return _want(case, view.replicas).hold(HoldReason.FLEET_INCOMPLETE, message)
    enough = fewest_enough(view, demand, least, case.settings)
    if isinstance(enough, Hold):
        held = _want(case, view.replicas)
        return Scaled(replicas=view.replicas, holds=(enough,), memory=held.memory)
    case = _want(case, view.replicas if case.tuned.pressed else min(enough, view.replicas))
    return _step_down(case, demand)


def _step_down(case: _Case, demand: Demand) -> Scaled:
    view, behavior = case.view, case.rules.behavior.scale_down
    window_s = behavior.stabilization_window_seconds
    steady = max(_wants_since(case, window_s))
    watched_s = case.now_s - max(_known(case.memory.since_s, case.now_s), _known(case.memory.settled_s, 0.0))
    latest = case.memory.wants[-1][1]
    if latest >= view.replicas:
        return Scaled(replicas=view.replicas, memory=case.memory)
    if steady >= view.replicas or watched_s < window_s:
        message = f"{count(latest, 'replica')} would do, but not yet for all of the last {window_s} s"
        return case.hold(HoldReason.STABILIZING, message)
    if not may_move(case.memory.turns, case.now_s, case.settings, rising=False):
        moment = may_move_at(case.memory.turns, case.settings, rising=False) or case.now_s
        again = clock(view.time, moment - case.now_s)
        message = f"replicas have turned lately; one may be removed again at {again}"
        return case.hold(HoldReason.TURNED_RECENTLY, message)
    least = lowest_allowed(view.replicas, behavior, case.memory.steps, case.now_s, every_s=case.settings.down_every_s)
    after = max(steady, least, case.rules.min_replicas)
    if after >= view.replicas:
        return case.hold(HoldReason.POLICY_LIMIT, "fewer would do, and behavior.scaleDown allows no step now")
    quiet_s = max(window_s, case.settings.window_s)
    sentence = f"{count(steady, 'replica')} would have held the targets for {quiet_s:.0f} s"
    return _step(case, after, RemedyReason.REPLICA_NOT_NEEDED, sentence, demand)


def _step(case: _Case, after: int, reason: RemedyReason, sentence: str, demand: Demand) -> Scaled:
    before, memory = case.view.replicas, case.memory
    change = Change(
        remedy=Remedy.SCALE,
        subject=None,
        before=before,
        after=after,
        reason=reason,
        message=f"{sentence}: replicas go from {before} to {after}",
        measurements=measurements_of(demand),
    )
    if case.rules.mode is Mode.ADVISORY:
        return Scaled(replicas=before, changes=(change,), memory=memory)
    return Scaled(replicas=after, changes=(change,), memory=_stepped(memory, case.now_s, before, after))


def _stepped(memory: ScaleMemory, now_s: float, before: int, after: int) -> ScaleMemory:
    grows = after > before
    return replace(
        memory,
        steps=(*memory.steps, (now_s, after - before)),
        awaited=after if grows else None,
        awaited_s=now_s if grows else None,
        settled_s=memory.settled_s if grows else now_s,
        troubled_s=None,
        turns=moved(memory.turns, now_s, rising=grows),
    )


def _keep_bounds(case: _Case) -> Scaled | None:
    """`minReplicas` and `maxReplicas` hold in every mode and whatever is known; Off means the minimum."""
    replicas, low = case.view.replicas, case.rules.min_replicas
    high = low if case.rules.mode is Mode.OFF else case.rules.max_replicas
    after = min(max(replicas, low), high)
    if after == replicas:
        return None
    what = "autoscaling is Off, which keeps minReplicas" if high == low else f"replicas lie within {low} and {high}"
    message = f"{what}: they go from {replicas} to {after}"
    change = Change(
        remedy=Remedy.SCALE,
        subject=None,
        before=replicas,
        after=after,
        reason=RemedyReason.OUT_OF_BOUNDS,
        message=message,
    )
    return Scaled(replicas=after, changes=(change,), memory=_stepped(case.memory, case.now_s, replicas, after))


def _observe(view: FleetView, memory: ScaleMemory, settings: LoopSettings) -> ScaleMemory:
    """What this look adds whatever is decided: time, steps that are through, history that is too old to count."""
    behavior = view.rules.autoscaling.behavior if view.rules.autoscaling else None
    since_s = memory.since_s if memory.since_s is not None else view.now_s
    memory = replace(memory, since_s=since_s, settled_s=memory.settled_s if memory.settled_s is not None else since_s)
    if behavior is not None:
        longest = max(behavior.scale_up.stabilization_window_seconds, behavior.scale_down.stabilization_window_seconds)
        period = longest_period_s(behavior.scale_up, behavior.scale_down)
        period = max(period, settings.down_every_s)
        memory = replace(
            memory,
            wants=tuple(want for want in memory.wants if view.now_s - want[0] <= longest),
            steps=tuple(step for step in memory.steps if view.now_s - step[0] < period),
        )
    if memory.awaited is None:
        return memory
    if len(view.ready) >= memory.awaited:
        return replace(memory, awaited=None, awaited_s=None, settled_s=view.now_s)
    if view.now_s - _known(memory.awaited_s, view.now_s) >= settings.starting_counts_s:
        return replace(memory, awaited=None, awaited_s=None)
    return memory


def _pending(case: _Case) -> str | None:
    """Capacity that is on its way, for as long as it may be."""
    counted = [pod for pod in case.view.starting if pod.age_s < case.settings.starting_counts_s]
    if counted:
        return f"{counted[0].name} has been starting since {clock(case.view.time, -counted[0].age_s)}"
    if case.memory.awaited is not None:
        return f"{len(case.view.ready)} of {case.memory.awaited} replicas are ready since the last step"
    return None


def _is_measured(case: _Case, since_s: float) -> bool:
    """Whether some pod was looked at for a whole window since the fleet got its size."""
    window_s = case.settings.window_s
    settled = case.now_s - (case.memory.settled_s or 0.0) >= window_s
    return settled and any(pod.window.is_full(case.now_s) for pod in case.view.ready)


def _want(case: _Case, replicas: int) -> _Case:
    wants = (*case.memory.wants, (case.now_s, replicas))
    return replace(case, memory=replace(case.memory, wants=wants))


def _known(moment_s: float | None, otherwise_s: float) -> float:
    return otherwise_s if moment_s is None else moment_s


def _wants_since(case: _Case, window_s: float) -> list[int]:
    return [replicas for at_s, replicas in case.memory.wants if case.now_s - at_s <= window_s]
