"""Reads one raw pod into what decisions need of it: identity, health, and what is wrong in a person's words.

It knows the kubelet's vocabulary (waiting reasons, termination messages) and nothing of rollouts or conditions.
Messages leave out what changes on every retry, such as back-off times, so that a lasting trouble writes one status.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from pagefleet_engine.contract.arguments import flag_name
from pagefleet_engine.contract.precision import Precision
from pagefleet_operator import labels
from pagefleet_operator.api.conditions import Reason, bounded
from pagefleet_operator.ends import describe_end
from pagefleet_operator.resources import Object, controller_uid
from pagefleet_operator.rollout import Health

IMAGE_REASONS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
START_REASONS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
BACK_OFF: Final = re.compile(r'^Back-off pulling image "[^"]*"(: \w+: )?')
MAX_MESSAGE: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why a pod does not serve."""

    reason: Reason
    message: str  # one line, bounded


@dataclass(frozen=True, slots=True, kw_only=True)
class PodObservation:
    """One pod of a service, as far as decisions care."""

    name: str
    uid: str
    owner_uid: str | None
    revision: str | None
    created: datetime
    node: str | None
    ready: bool
    unready_since: datetime  # when it last stopped to be ready; its creation if it never was
    running: bool  # its engine's process runs
    served: bool  # this very process was ready before and is not now
    ip: str | None
    marked: datetime | None  # since when it drains, if it does
    gate: bool | None  # its readiness gate, open or closed; None: it has none
    gate_since: datetime | None
    public_keys: str | None  # that its engine checks control tokens with
    model: str | None  # what its engine was started for, as the command line has it
    max_model_len: int | None  # likewise; None: that of its model
    kv_precision: Precision | None  # likewise; None: its command line does not say
    gone: bool  # evicted, refused by its node, …: it will never run again
    restarts: int
    deadline: datetime | None  # when its deletion should be over; None: it stays
    trouble: Trouble | None

    @property
    def leaving(self) -> bool:
        """The pod is being deleted."""
        return self.deadline is not None

    @property
    def draining(self) -> bool:
        """It is marked to leave, and not deleted yet."""
        return self.marked is not None and not self.leaving

    @property
    def health(self) -> Health:
        """Its worth in a rollout."""
        if self.ready:
            return Health.READY
        return Health.STARTING if self.trouble is None else Health.BROKEN


def observe_pod(raw: Object) -> PodObservation:
    """Parse a pod. A pod that no kubelet has seen has no container status yet: that is no trouble."""
    metadata, status = raw["metadata"], raw.get("status", {})
    deletion = metadata.get("deletionTimestamp")
    container, readiness = _engine_status(status), _condition(status, "Ready")
    gate = _condition(status, labels.SERVING_GATE)
    ready, served = readiness.get("status") == "True", served_before(container, readiness)
    return PodObservation(
        name=metadata["name"],
        uid=metadata["uid"],
        owner_uid=controller_uid(raw),
        revision=metadata.get("labels", {}).get(labels.REVISION),
        created=parse_time(metadata["creationTimestamp"]),
        node=raw["spec"].get("nodeName"),
        ready=ready and deletion is None,
        unready_since=parse_time(readiness.get("lastTransitionTime") or metadata["creationTimestamp"]),
        running="running" in container.get("state", {}),
        served=served,
        ip=status.get("podIP"),
        marked=_marked(metadata),
        gate=gate.get("status") == "True" if _has_gate(raw) else None,
        gate_since=parse_time(gate["lastTransitionTime"]) if gate.get("lastTransitionTime") else None,
        public_keys=metadata.get("annotations", {}).get(labels.CONTROL_KEYS),
        model=_argument(raw, "model"),
        max_model_len=_max_model_len(raw),
        kv_precision=_kv_precision(raw),
        gone=status.get("phase") in ("Failed", "Succeeded"),
        restarts=container.get("restartCount", 0),
        deadline=parse_time(deletion) if deletion else None,
        trouble=None if ready or served or _is_closed(gate) else find_trouble(raw, status, container),
    )


def find_trouble(raw: Object, status: Object, container: Object) -> Trouble | None:
    """What is wrong with a pod that is not ready; None while it is merely starting."""
    if status.get("phase") in ("Failed", "Succeeded"):
        text = ": ".join(filter(None, (status.get("reason"), status.get("message"))))
        return _trouble(Reason.POD_FAILED, text or "all its containers ended")
    scheduling = _condition(status, "PodScheduled")
    if scheduling.get("status") == "False":
        return _unschedulable(scheduling.get("message", "no node fits"))
    waiting = container.get("state", {}).get("waiting", {})
    kind, text = waiting.get("reason"), waiting.get("message", "")
    if kind in IMAGE_REASONS:
        return _trouble(Reason.IMAGE_PULL_FAILED, f"image {_image(raw)}: {BACK_OFF.sub('', text) or kind}")
    if kind in START_REASONS:
        return _trouble(Reason.CONTAINER_CONFIG_ERROR, f"{kind}: {text}")
    return _last_end(container, kind)


def parse_time(text: str) -> datetime:
    """RFC 3339, as the API server writes it."""
    return datetime.fromisoformat(text)


def served_before(container: Object, readiness: Object) -> bool:
    """Whether the engine's present run was ready once, though it is not now.

    A run that ends takes the readiness away before the next one starts, so a later change can only be of this run.
    """
    started = container.get("state", {}).get("running", {}).get("startedAt")
    changed = readiness.get("lastTransitionTime")
    if not started or not changed or readiness.get("status") == "True":
        return False
    return parse_time(changed) > parse_time(started)


def _marked(metadata: Object) -> datetime | None:
    """A mark that is no time was made by hand: it counts from the pod's creation."""
    text = metadata.get("annotations", {}).get(labels.LEAVING)
    if text is None:
        return None
    try:
        moment = parse_time(text)
    except ValueError:
        moment = None
    return moment if moment is not None and moment.tzinfo else parse_time(metadata["creationTimestamp"])


def _kv_precision(raw: Object) -> Precision | None:
    if _argument(raw, "model") is None:
        return None  # not a command line of ours
    word = _argument(raw, "kv_cache_dtype")
    if word is None:
        return Precision.BF16  # the default, which a command line leaves out
    return Precision(word) if word in set(Precision) else None


def _max_model_len(raw: Object) -> int | None:
    word = _argument(raw, "max_model_len")
    return int(word) if word is not None and word.isdecimal() else None


def _argument(raw: Object, field: str) -> str | None:
    """The word after a flag of the engine's command line."""
    words = _entry(raw["spec"].get("containers", ()), "name", labels.ENGINE_CONTAINER).get("args") or []
    flag = flag_name(field)
    return next((value for word, value in pairwise(words) if word == flag), None)


def _is_closed(gate: Object) -> bool:
    return gate.get("status") == "False"


def _has_gate(raw: Object) -> bool:
    return any(gate["conditionType"] == labels.SERVING_GATE for gate in raw["spec"].get("readinessGates", ()))


def _last_end(container: Object, waiting: str | None) -> Trouble | None:
    end = container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated")
    return None if end is None else _trouble(*describe_end(end, waiting))


def _unschedulable(message: str) -> Trouble:
    lacks_gpu = "gpu" in message.lower()
    return _trouble(Reason.INSUFFICIENT_GPU if lacks_gpu else Reason.UNSCHEDULABLE, message)


def _trouble(reason: Reason, text: str) -> Trouble:
    return Trouble(reason=reason, message=bounded(" ".join(text.split()), MAX_MESSAGE))


def _engine_status(status: Object) -> Object:
    return _entry(status.get("containerStatuses", ()), "name", labels.ENGINE_CONTAINER)


def _condition(status: Object, kind: str) -> Object:
    return _entry(status.get("conditions", ()), "type", kind)


def _entry(items: Any, key: str, value: str) -> Object:
    return next((dict(item) for item in items if item[key] == value), {})


def _image(raw: Object) -> str:
    return str(_entry(raw["spec"]["containers"], "name", labels.ENGINE_CONTAINER).get("image", "unknown"))
