"""Carries out a plan's steps: removals first, then the rest, each tolerating that somebody was faster.

A refused creation (quota, policy, a value the API server does not accept, a name that is taken) is an outcome, not an
error: it belongs into the status. Anything else that fails is raised, and the whole reconcile is tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pagefleet_operator.api.conditions import Reason, bounded
from pagefleet_operator.cluster import Cluster
from pagefleet_operator.engines import Engines
from pagefleet_operator.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    EngineRefusedError,
    EngineUnreachableError,
    NamespaceEndsError,
    NotFoundError,
)
from pagefleet_operator.pods import MAX_MESSAGE, Trouble
from pagefleet_operator.resources import controller_uid
from pagefleet_operator.steps import Asked, CancelDrain, Create, Delete, Drain, Patch, Step

logger = logging.getLogger(__name__)
REFUSED: Final = frozenset({400, 403, 422})


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What became of a plan."""

    done: tuple[Step, ...]
    refusals: tuple[Trouble, ...]
    stale: bool  # something changed since it was read: look again at once
    ends: bool = False  # the namespace is being terminated, so the rest of the plan was dropped


async def apply(steps: Sequence[Step], namespace: str, cluster: Cluster, engines: Engines | None = None) -> Applied:
    """An engine that does not answer is asked again with the next plan.

    Raises `ApiError` and `UnreachableError` for what a later try may cure.
    """
    done: list[Step] = []
    refusals: list[Trouble] = []
    stale = False
    for step in sorted(steps, key=lambda step: not isinstance(step, Delete)):
        try:
            if isinstance(step, Drain | CancelDrain):
                await _ask(step, engines)
            else:
                await _carry_out(step, namespace, cluster)
            done.append(step)
        except NamespaceEndsError:
            return Applied(done=tuple(done), refusals=(), stale=False, ends=True)
        except (EngineUnreachableError, EngineRefusedError) as error:
            logger.warning("%s: %s", step.name, error)
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


async def _ask(step: Asked, engines: Engines | None) -> None:
    if engines is None:
        raise EngineUnreachableError("no engine can be asked: the operator has no signing key")
    if isinstance(step, Drain):
        await engines.drain(step.pod, refuse=step.refuse)
    else:
        await engines.cancel_drain(step.pod)


async def _carry_out(step: Create | Patch | Delete, namespace: str, cluster: Cluster) -> None:
    if isinstance(step, Create):
        await cluster.create(step.resource, step.manifest)
    elif isinstance(step, Patch):
        status = "status" if step.of_status else None
        await cluster.patch(step.resource, namespace, step.name, step.patch, subresource=status, by_keys=step.of_status)
    else:
        await cluster.delete(step.resource, namespace, step.name, uid=step.uid, grace_s=step.grace_s)
