"""What the deciders see of one service: its pods with their windows, and the parts of the spec that they follow."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pagefleet_operator.api.engine_spec import MaxNumSeqs
from pagefleet_operator.api.quantities import parse_duration, parse_share
from pagefleet_operator.api.remedy_spec import AutoscalingSpec, Mode, TuningSpec
from pagefleet_operator.api.v1alpha1 import LLMServiceSpec
from pagefleet_operator.remedies.settings import LoopSettings
from pagefleet_operator.remedies.window import PodWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyPod:
    """A pod that gets requests."""

    name: str
    window: PodWindow
    longest: int | None = None  # the length that its engine was started for; None: that of its model

    def length_of(self, desired: int) -> int:
        """What it can have of a desired length: a pod of an older revision may be shorter."""
        return desired if self.longest is None else min(desired, self.longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingPod:
    """A pod that does not serve yet and is not leaving."""

    name: str
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomNeed:
    """What keeps a route from its fallback precision, shares of the KV pool."""

    route: str
    needed_share: float  # once it has moved
    allowed_share: float

    @property
    def sentence(self) -> str:
        """The beginning of a message."""
        return (
            f"with route {self.route} in its fallback precision {self.needed_share:.0%} of the KV pool would be used, "
            f"and {self.allowed_share:.0%} may"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """`autoscaling.targets` in numbers. None: not looked at."""

    queue_per_replica: int = 5
    first_token_s: float | None = None
    inter_token_s: float | None = None
    kv_usage: float = 0.80


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The parts of the spec that the remedies follow."""

    cap: MaxNumSeqs
    tuning: TuningSpec
    autoscaling: AutoscalingSpec | None
    max_model_len: int | None  # of the spec

    @classmethod
    def of(cls, spec: LLMServiceSpec) -> Rules:
        """Those of a spec."""
        return cls(
            cap=spec.engine.max_num_seqs,
            tuning=spec.tuning,
            autoscaling=spec.autoscaling,
            max_model_len=spec.engine.max_model_len,
        )

    @property
    def targets(self) -> Targets:
        """What the fleet should hold; the defaults without `autoscaling`."""
        if self.autoscaling is None:
            return Targets()
        given = self.autoscaling.targets
        return Targets(
            queue_per_replica=given.queued_requests_per_replica,
            first_token_s=_seconds(given.time_to_first_token),
            inter_token_s=_seconds(given.inter_token_latency),
            kv_usage=parse_share(given.kv_cache_usage),
        )

    @property
    def scaling_mode(self) -> Mode:
        """Off without `autoscaling`."""
        return Mode.OFF if self.autoscaling is None else self.autoscaling.mode


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """One service at one moment."""

    now_s: float  # monotonic; every interval is measured with it
    time: datetime  # wall clock; only for `Decision.time`
    rules: Rules
    replicas: int  # desired now
    ready: tuple[ReadyPod, ...] = ()
    starting: tuple[StartingPod, ...] = ()
    draining: tuple[str, ...] = ()
    foreign_autoscaler: str | None = None  # such as "HorizontalPodAutoscaler web"
    alert: str | None = None  # a new alert asks for one replica more; its name
    room: RoomNeed | None = None  # as the last look found it
    paused: bool = False
    settings: LoopSettings = LoopSettings()


def _seconds(duration: str | None) -> float | None:
    return None if duration is None else parse_duration(duration).total_seconds()
