"""What a plan can do to a child or ask of an engine, each with its reason for the log and the event."""

from __future__ import annotations

from dataclasses import dataclass

from pagefleet_operator.api.conditions import Reason
from pagefleet_operator.engines import EnginePod
from pagefleet_operator.resources import POD, Object, Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Make a child that is missing."""

    resource: Resource
    manifest: Object
    reason: Reason
    why: str

    @property
    def name(self) -> str:
        """The child's name."""
        return str(self.manifest["metadata"]["name"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """Correct a child; the patch carries its preconditions."""

    resource: Resource
    name: str
    patch: Object
    reason: Reason
    why: str
    of_status: bool = False
    """The patch is of the status subresource, and merges lists by their keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Remove this very child."""

    resource: Resource
    name: str
    uid: str
    reason: Reason
    why: str
    grace_s: int | None = None
    """Between SIGTERM and SIGKILL; None: what the pod's spec says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfEngine:
    """What is asked of the engine in one pod."""

    pod: EnginePod
    reason: Reason
    why: str

    @property
    def name(self) -> str:
        """The pod's name."""
        return self.pod.name

    @property
    def resource(self) -> Resource:
        """Always a pod."""
        return POD


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain(_OfEngine):
    """Let an engine serve late arrivals only, and with `refuse` not even those."""

    refuse: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelDrain(_OfEngine):
    """Let an engine serve on as before."""


Asked = Drain | CancelDrain
Step = Create | Patch | Delete | Asked


def describe(step: Step) -> str:
    """`delete Pod x: 2 replicas are wanted`."""
    return f"{verb(step)} {step.resource.kind} {step.name}: {step.why}"


def verb(step: Step) -> str:
    """create, patch, delete, drain or canceldrain."""
    return type(step).__name__.lower()
