"""What the deciders keep from one look to the next. Small, immutable, and rebuilt from status after a restart.

After a restart of the operator nothing of it is known but the desired caps: then windows fill first, and raises and
removals wait as if the last change had just been made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pagefleet_operator.api.status import LLMServiceStatus, PodState
from pagefleet_operator.remedies.window import EngineStart


@dataclass(frozen=True, slots=True)
class Turns:
    """In which direction a value went last, and when it turned; bounds how often it may turn."""

    rising: bool | None = None  # None: it never changed
    at_s: tuple[float, ...] = ()  # the last turns, oldest first
    failures: int = 0  # raises in a row that did harm


@dataclass(frozen=True, slots=True, kw_only=True)
class CapMemory:
    """One pod's cap."""

    start: EngineStart  # the engine's start that it was applied to
    desired: int
    changed_s: float  # when it last changed, or was adopted
    last_good: int | None = None  # before the last raise, while that is being judged
    cut: bool = False  # the last change was a cut
    settling: bool = False  # a cut is not through yet: running > cap, or not seen since
    turns: Turns = Turns()
    drift: int | None = None  # the reported cap about which a decision was made already


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A raise that one pod tries for the others."""

    pod: str
    cap: int
    since_s: float
    quiet: bool = False  # no queue to shorten, but the way back


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthMemory:
    """The live length limit of the service."""

    desired: int | None = None  # None: as the spec says
    full: int | None = None  # what the spec said when that was decided; None: not known
    changed_s: float | None = None
    turns: Turns = Turns()
    drift: tuple[str, ...] = ()  # pods about which a decision was made already


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneMemory:
    """Caps and length."""

    caps: Mapping[str, CapMemory] = field(default_factory=dict)
    canary: Canary | None = None
    length: LengthMemory = LengthMemory()
    swapped_s: float | None = None  # the last look at which a pod swapped, or it was not known whether it did
    queued_s: float | None = None  # the last look at which a request waited, or it was not known whether one did


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleMemory:
    """Replicas."""

    since_s: float | None = None  # the first look; windows before it are unknown
    wants: tuple[tuple[float, int], ...] = ()  # (when, replicas that would do), over the stabilisation windows
    troubled_s: float | None = None  # since when demand has been above what the fleet holds
    steps: tuple[tuple[float, int], ...] = ()  # (when, change), over the policies' periods
    awaited: int | None = None  # ready pods after which the last step up is through
    awaited_s: float | None = None  # when that step was made
    settled_s: float | None = None  # when the fleet last got its size
    turns: Turns = Turns()


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What status knew of a pod before the operator's restart."""

    cap: int
    restarts: int | None  # of its engine, when that cap was reported; None: not known, as it does not serve since


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """All of it."""

    tune: TuneMemory = TuneMemory()
    scale: ScaleMemory = ScaleMemory()
    advised: Mapping[str, float] = field(default_factory=dict)  # advice -> when it was given
    restored: Mapping[str, Restored] = field(default_factory=dict)  # pod -> before the restart


def rebuild_memory(status: LLMServiceStatus, full_lengths: Collection[int] = ()) -> Memory:
    """The memory after a restart of the operator, from what it wrote before.

    A pod whose engine was not restarted since is believed: it may have a change that status never heard of. An engine
    that was restarted gets the cap that status has. `full_lengths` are those of the spec and of the engines' command
    lines: one of them in the status is no shortening.
    """
    tuning = status.tuning
    restored = {
        pod.name: Restored(cap=pod.max_num_seqs, restarts=pod.restarts if pod.state is PodState.SERVING else None)
        for pod in status.pods
        if pod.max_num_seqs is not None
    }
    length = tuning.max_model_len if tuning else None
    shortened = None if length in full_lengths else length
    return Memory(tune=TuneMemory(length=LengthMemory(desired=shortened)), restored=restored)
