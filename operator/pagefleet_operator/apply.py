"""Carries out a plan's steps: removals first, then the rest, each tolerating that somebody was faster.

A refused creation (quota, policy, a value the API server does not accept, a name that is taken) is an outcome, not an
error: it belongs into the status. Anything else that fails is raised, and the whole reconcile is tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pagefleet_operator.api.conditions import Reason, bounded
from pagefleet_operator.cluster import Cluster
from pagefleet_operator.errors import AlreadyExistsError, ApiError, ConflictError, NamespaceEndsError, NotFoundError
from pagefleet_operator.pods import MAX_MESSAGE, Trouble
from pagefleet_operator.resources import controller_uid
from pagefleet_operator.steps import Create, Delete, Patch, Step

REFUSED: Final = frozenset({400, 403, 422})


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What became of a plan."""

    done: tuple[Step, ...]
    refusals: tuple[Trouble, ...]
    stale: bool  # something changed since it was read: look again at once
    ends: bool = False  # the namespace is being terminated, so the rest of the plan was dropped


async def apply(steps: Sequence[Step], namespace: str, cluster: Cluster) -> Applied:
    """Raises `ApiError` and `UnreachableError` for what a later try may cure."""
    done: list[Step] = []
    refusals: list[Trouble] = []
    stale = False
    for step in sorted(steps, key=lambda step: not isinstance(step, Delete)):
        try:
            await _carry_out(step, namespace, cluster)
            done.append(step)
        except NamespaceEndsError:
            return Applied(done=tuple(done), refusals=(), stale=False, ends=True)
        except (NotFoundError, ConflictError):
            stale = True
        except AlreadyExistsError:
            if await _is_ours(step, namespace, cluster):
                stale = True
                continue
            text = f"{step.resource.kind} {step.name} exists and was not made for this service: remove or rename it"
            refusals.append(Trouble(reason=Reason.NAME_TAKEN, message=text))
        except ApiError as error:
            if error.status not in REFUSED or not isinstance(step, Create):
                raise
            refusals.append(Trouble(reason=Reason.POD_REFUSED, message=bounded(str(error), MAX_MESSAGE)))
    return Applied(done=tuple(done), refusals=tuple(refusals), stale=stale)


async def _is_ours(step: Step, namespace: str, cluster: Cluster) -> bool:
    """Whether the child that exists is the one to be made: an answer was lost, or another operator was faster."""
    if not isinstance(step, Create):
        return False
    wanted = step.manifest["metadata"]
    found = await cluster.find(step.resource, namespace, wanted["labels"])
    return (step.name, controller_uid(step.manifest)) in {
        (raw["metadata"]["name"], controller_uid(raw)) for raw in found
    }


async def _carry_out(step: Step, namespace: str, cluster: Cluster) -> None:
    if isinstance(step, Create):
        await cluster.create(step.resource, step.manifest)
    elif isinstance(step, Patch):
        await cluster.patch(step.resource, namespace, step.name, step.patch)
    else:
        await cluster.delete(step.resource, namespace, step.name, uid=step.uid)
