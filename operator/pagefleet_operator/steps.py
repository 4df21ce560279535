"""The three things that a plan can do to a child, each with its reason for the log and the event."""

from __future__ import annotations

from dataclasses import dataclass

from pagefleet_operator.api.conditions import Reason
from pagefleet_operator.resources import Object, Resource


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Remove this very child."""

    resource: Resource
    name: str
    uid: str
    reason: Reason
    why: str


Step = Create | Patch | Delete


def describe(step: Step) -> str:
    """`delete Pod x: 2 replicas are wanted`."""
    return f"{verb(step)} {step.resource.kind} {step.name}: {step.why}"


def verb(step: Step) -> str:
    """create, patch or delete."""
    return type(step).__name__.lower()
