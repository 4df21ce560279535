"""What is true of a service: one function per condition, from the same counts.

Each function returns a status with its reason and a sentence; `judge` lists them in the order of their meaning. All
conditions are computed anew every time, so none can be left over from an earlier state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pagefleet_operator.api.conditions import ConditionState, ConditionType, Reason
from pagefleet_operator.observe import Observation, Unacceptable, Wanted
from pagefleet_operator.pods import PodObservation
from pagefleet_operator.remedy_verdicts import judge_remedies
from pagefleet_operator.verdict import FALSE, TRUE, UNKNOWN, Verdict

MODEL_REASONS: Final = frozenset({Reason.MODEL_MISSING, Reason.ENGINE_START_FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A service's pods, sorted by what they mean."""

    desired: int
    max_unavailable: int
    revision: str | None
    staying: tuple[PodObservation, ...]  # not leaving, not ended
    current: tuple[PodObservation, ...]  # those of the wanted revision
    leaving: tuple[PodObservation, ...]
    lost: tuple[PodObservation, ...]  # leaving for too long
    gone: tuple[PodObservation, ...]  # ended, and not yet removed
    late: tuple[PodObservation, ...]  # unready for longer than the progress deadline

    @property
    def num_ready(self) -> int:
        """Pods that serve."""
        return sum(pod.ready for pod in self.staying)

    @property
    def num_old(self) -> int:
        """Staying pods of another revision."""
        return len(self.staying) - len(self.current)

    @property
    def min_ready(self) -> int:
        """What counts as available."""
        return min(self.desired, max(1, self.desired - self.max_unavailable))


def judge(observed: Observation, fleet: Fleet) -> Iterator[ConditionState]:
    """Every condition."""
    accepted, available = judge_accepted(observed), judge_available(fleet)
    progressing, model, degraded = (
        judge_progressing(observed, fleet),
        judge_model(fleet),
        judge_degraded(observed, fleet),
    )
    verdicts = {
        ConditionType.ACCEPTED: accepted,
        ConditionType.AVAILABLE: available,
        ConditionType.PROGRESSING: progressing,
        ConditionType.MODEL_READY: model,
        ConditionType.DRAINING: judge_draining(fleet),
        ConditionType.DEGRADED: degraded,
        ConditionType.READY: judge_ready(accepted, available, progressing, degraded),
    }
    if isinstance(observed.wanted, Wanted):
        verdicts |= dict(judge_remedies(observed.wanted.spec, observed.control))
    for kind, verdict in verdicts.items():
        yield ConditionState(
            type=kind,
            status=verdict.status,
            reason=verdict.reason,
            message=verdict.message,
            observed_generation=observed.generation,
        )


def judge_accepted(observed: Observation) -> Verdict:
    """Whether the spec can be acted on."""
    wanted = observed.wanted
    if isinstance(wanted, Unacceptable):
        return Verdict(FALSE, wanted.reason, "; ".join(map(str, wanted.problems)))
    return Verdict(TRUE, Reason.SPEC_ACCEPTED, "The spec is valid.")


def judge_available(fleet: Fleet) -> Verdict:
    """Whether enough pods serve."""
    serving = f"{fleet.num_ready} of {fleet.desired} pods serve"
    if fleet.desired == 0:
        return Verdict(TRUE, Reason.SCALED_TO_ZERO, "No pod is wanted, so none serves.")
    if fleet.num_ready >= fleet.desired:
        return Verdict(TRUE, Reason.ALL_REPLICAS_READY, f"{serving}.")
    if fleet.num_ready >= fleet.min_ready:
        return Verdict(TRUE, Reason.ENOUGH_REPLICAS_READY, f"{serving}; {fleet.min_ready} are enough.")
    if fleet.num_ready > 0:
        return Verdict(FALSE, Reason.TOO_FEW_REPLICAS_READY, f"{serving}; {fleet.min_ready} are needed.")
    return Verdict(FALSE, Reason.NO_REPLICAS_READY, f"{serving}.")


def judge_progressing(observed: Observation, fleet: Fleet) -> Verdict:
    """Whether the fleet is on its way to the spec."""
    wanted = observed.wanted
    if isinstance(wanted, Unacceptable):
        return Verdict(FALSE, wanted.reason, "Nothing is changed until the spec is accepted.")
    if wanted.spec.paused:
        return Verdict(FALSE, Reason.PAUSED, "spec.paused is set: nothing is changed.")
    if fleet.late:
        return Verdict(FALSE, Reason.PROGRESS_DEADLINE_EXCEEDED, f"Not ready for ten minutes: {_names(fleet.late)}.")
    if fleet.num_old:
        done = f"{len(fleet.current)} of {fleet.desired} pods are of revision {fleet.revision}"
        return Verdict(TRUE, Reason.REPLACING_PODS, f"{done}; {fleet.num_old} older ones are left.")
    if len(fleet.staying) > fleet.desired:
        return Verdict(TRUE, Reason.REMOVING_PODS, f"{len(fleet.staying)} pods, {fleet.desired} wanted.")
    if len(fleet.current) < fleet.desired:
        return Verdict(TRUE, Reason.CREATING_PODS, f"{len(fleet.current)} of {fleet.desired} pods are made.")
    waiting = tuple(pod for pod in fleet.staying if not pod.ready)
    if waiting:
        return Verdict(TRUE, Reason.WAITING_FOR_PODS, f"Not ready yet: {_names(waiting)}.")
    return Verdict(FALSE, Reason.SETTLED, "The fleet is what the spec asks for.")


def judge_model(fleet: Fleet) -> Verdict:
    """Whether the model of the wanted revision could be loaded; an engine's own words come before everything."""
    for pod in fleet.current:
        if pod.trouble is not None and pod.trouble.reason in MODEL_REASONS:
            return Verdict(FALSE, pod.trouble.reason, f"{pod.name}: {pod.trouble.message}")
    serving = [pod for pod in fleet.current if pod.ready] or [pod for pod in fleet.staying if pod.ready]
    if serving:
        return Verdict(TRUE, Reason.MODEL_LOADED, f"{serving[0].name} has answered its warm-up token.")
    running = [pod for pod in fleet.staying if pod.running and pod.trouble is None]
    loading = [pod for pod in running if not pod.served]
    if loading:
        return Verdict(FALSE, Reason.MODEL_LOADING, f"{loading[0].name} loads the model.")
    if running:
        message = f"{running[0].name} has served, and fails its readiness probe now; its process still runs."
        return Verdict(FALSE, Reason.ENGINE_NOT_READY, message)
    return Verdict(UNKNOWN, Reason.NOT_OBSERVED, "No engine runs.")


def judge_draining(fleet: Fleet) -> Verdict:
    """Whether pods are leaving."""
    leaving = tuple(pod for pod in fleet.leaving if pod not in fleet.lost)
    if leaving:
        return Verdict(TRUE, Reason.PODS_DRAINING, f"Finishing their requests: {_names(leaving)}.")
    return Verdict(FALSE, Reason.AS_EXPECTED, "No pod is leaving.")


def judge_degraded(observed: Observation, fleet: Fleet) -> Verdict:
    """Whether a person should look; the first of the troubles in order of how much they explain."""
    if observed.foreign:
        message = f"Not made by the operator, but in its way: {', '.join(observed.foreign)}. Remove or rename it."
        return Verdict(TRUE, Reason.NAME_TAKEN, message)
    for refusal in observed.refusals:
        return Verdict(TRUE, refusal.reason, refusal.message)
    for pod in (*fleet.current, *fleet.staying, *fleet.gone):
        if pod.trouble is not None:
            return Verdict(TRUE, pod.trouble.reason, f"{pod.name}: {pod.trouble.message}")
    if fleet.late and not _is_paused(observed):
        return Verdict(TRUE, Reason.PROGRESS_DEADLINE_EXCEEDED, f"Not ready for ten minutes: {_names(fleet.late)}.")
    if fleet.lost:
        return Verdict(TRUE, Reason.NODE_LOST, f"Their nodes do not answer: {_names(fleet.lost)}.")
    return Verdict(FALSE, Reason.AS_EXPECTED, "Nothing needs attention.")


def judge_ready(accepted: Verdict, available: Verdict, progressing: Verdict, degraded: Verdict) -> Verdict:
    """The roll-up: the first thing that stands against it, or why it is true."""
    if accepted.status is not TRUE:
        return accepted
    if degraded.status is TRUE:
        return Verdict(FALSE, degraded.reason, degraded.message)
    if available.status is TRUE:
        return available
    return Verdict(FALSE, progressing.reason, progressing.message)


def _is_paused(observed: Observation) -> bool:
    return isinstance(observed.wanted, Wanted) and observed.wanted.spec.paused


def _names(pods: tuple[PodObservation, ...]) -> str:
    shown = ", ".join(pod.name for pod in pods[:5])
    return shown if len(pods) <= 5 else f"{shown} and {len(pods) - 5} more"
