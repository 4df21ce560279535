"""An in-memory `Cluster` for tests, with what the operator relies on and nothing more.

It keeps uids, resource versions, generations, the status subresource, graceful pod deletion, garbage collection by
owner, label selectors, write conflicts and a log of all writes. It validates nothing and runs no pods: tests play the
kubelet through `set_pod`, `finish_pod` and `run_kubelet`. `Scene` puts one service and its reconcile on top.
"""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry

from pagefleet_operator import labels
from pagefleet_operator.api import v1alpha1
from pagefleet_operator.control.fleets import Fleets
from pagefleet_operator.errors import AlreadyExistsError, ConflictError, NotFoundError, OperatorError
from pagefleet_operator.labels import Key
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.reconcile import Reconciler
from pagefleet_operator.resources import EVENT, LLM_SERVICE, POD, Object, Resource

START = datetime(2026, 1, 1, tzinfo=UTC)


class Address(NamedTuple):
    """Where an object is stored."""

    plural: str
    namespace: str
    name: str


class Write(NamedTuple):
    """One write that was accepted; `verb` is create, patch, patch/status or delete."""

    verb: str
    plural: str
    name: str


@dataclass
class FakeCluster:
    """The `Cluster` Protocol over a dict."""

    now: datetime = START
    objects: dict[Address, Object] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)
    watchers: list[Callable[[str, Object], None]] = field(default_factory=list)
    failures: deque[tuple[str, str, OperatorError]] = field(default_factory=deque)
    _versions: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    # The Protocol

    def seconds(self) -> float:
        """The same time on a monotonic clock."""
        return (self.now - START).total_seconds()

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        self._fail("get", resource)
        found = self.objects.get(Address(resource.plural, namespace, name))
        return copy.deepcopy(found) if found is not None else None

    async def find(self, resource: Resource, namespace: str | None, selector: Mapping[str, str]) -> list[Object]:
        self._fail("find", resource)
        return [
            copy.deepcopy(raw)
            for address, raw in self.objects.items()
            if address.plural == resource.plural
            and namespace in (None, address.namespace)
            and selector.items() <= raw["metadata"].get("labels", {}).items()
        ]

    async def create(self, resource: Resource, manifest: Object) -> Object:
        self._fail("create", resource)
        raw = copy.deepcopy(manifest)
        address = Address(resource.plural, raw["metadata"]["namespace"], raw["metadata"]["name"])
        if address in self.objects:
            raise AlreadyExistsError(409, "AlreadyExists", f'{address.plural} "{address.name}" already exists')
        raw["metadata"] |= {"uid": f"uid-{next(self._versions)}", "creationTimestamp": timestamp(self.now)}
        if resource is LLM_SERVICE:
            raw["metadata"]["generation"] = 1
        if resource is POD:
            raw["status"] = {"phase": "Pending"}
        return self._store("create", "ADDED", address, raw)

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Object,
        *,
        subresource: str | None = None,
        by_keys: bool = False,
    ) -> Object:
        self._fail("patch", resource)
        address = Address(resource.plural, namespace, name)
        old = self._existing(address)
        _check_preconditions(old, patch.get("metadata", {}))
        part = {key: value for key, value in patch.items() if (key == "status") == (subresource == "status")}
        part.pop("metadata", None) if subresource else None
        raw = merge_patch(old, _by_type(old, part) if by_keys else part)
        if raw == old:
            return copy.deepcopy(old)
        if raw.get("spec") != old.get("spec") and "generation" in old["metadata"]:
            raw["metadata"]["generation"] += 1
        return self._store(f"patch/{subresource}" if subresource else "patch", "MODIFIED", address, raw)

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, grace_s: int | None = None
    ) -> None:
        self._fail("delete", resource)
        address = Address(resource.plural, namespace, name)
        raw = self._existing(address)
        _check_preconditions(raw, {"uid": uid})
        if resource is POD:
            if "deletionTimestamp" not in raw["metadata"]:
                self._mark_deleted(address, "delete", grace_s)
            return
        self.writes.append(Write("delete", address.plural, address.name))
        self._remove(address)

    # What a test does to the cluster

    def set_pod(self, namespace: str, name: str, status: Mapping[str, Any], *, node: str | None = None) -> None:
        """Play the kubelet: merge this into a pod's status, and bind it to a node."""
        address = Address("pods", namespace, name)
        patch: Object = {"status": dict(status)}
        if node is not None:
            patch["spec"] = {"nodeName": node}
        self._store(None, "MODIFIED", address, merge_patch(self._existing(address), patch))

    def run_kubelet(self) -> None:
        """Every leaving pod is gone, every other one that has not failed serves."""
        for address, raw in list(self.objects.items()):
            if address.plural != POD.plural:
                continue
            if "deletionTimestamp" in raw["metadata"]:
                self.finish_pod(address.namespace, address.name)
            elif raw["status"].get("phase") != "Failed" and raw["status"] != (wanted := _running(raw)):
                self.set_pod(address.namespace, address.name, wanted, node="node-1")

    def finish_pod(self, namespace: str, name: str) -> None:
        """The pod's containers have ended, or its node was removed: the object goes."""
        self._remove(Address("pods", namespace, name))

    def fail_next(self, verb: str, plural: str, error: OperatorError) -> None:
        """Let the next such call fail."""
        self.failures.append((verb, plural, error))

    def names(self, resource: Resource) -> list[str]:
        """The names of all objects of a kind, sorted."""
        return sorted(address.name for address in self.objects if address.plural == resource.plural)

    def take_writes(self) -> list[Write]:
        """The writes since the last call, without events."""
        taken = [write for write in self.writes if write.plural != "events"]
        self.writes.clear()
        return taken

    # Inside

    def _existing(self, address: Address) -> Object:
        if address not in self.objects:
            raise NotFoundError(404, "NotFound", f'{address.plural} "{address.name}" not found')
        return self.objects[address]

    def _store(self, verb: str | None, event: str, address: Address, raw: Object) -> Object:
        raw["metadata"]["resourceVersion"] = str(next(self._versions))
        self.objects[address] = raw
        if verb is not None:
            self.writes.append(Write(verb, address.plural, address.name))
        self._notify(event, raw)
        return copy.deepcopy(raw)

    def _mark_deleted(self, address: Address, verb: str | None, grace_s: int | None = None) -> None:
        raw = copy.deepcopy(self.objects[address])
        grace = raw["spec"].get("terminationGracePeriodSeconds", 30) if grace_s is None else grace_s
        raw["metadata"]["deletionTimestamp"] = timestamp(self.now + timedelta(seconds=grace))
        self._store(verb, "MODIFIED", address, raw)

    def _remove(self, address: Address) -> None:
        raw = self.objects.pop(address)
        self._notify("DELETED", raw)
        uid = raw["metadata"]["uid"]
        for child, owned in list(self.objects.items()):
            if all(reference["uid"] != uid for reference in owned["metadata"].get("ownerReferences", ())):
                continue
            if child.plural == "pods":
                self._mark_deleted(child, None)
            else:
                self._remove(child)

    def _notify(self, event: str, raw: Object) -> None:
        for watcher in self.watchers:
            watcher(event, copy.deepcopy(raw))

    def _fail(self, verb: str, resource: Resource) -> None:
        if self.failures and self.failures[0][:2] == (verb, resource.plural):
            raise self.failures.popleft()[2]


KEY = Key("models", "smollm2")


@dataclass
class Scene:
    """One service on a fake cluster, and the operator's reconcile of it, for tests that tell a story."""

    cluster: FakeCluster = field(default_factory=FakeCluster)

    def __post_init__(self) -> None:
        self.reconciler = Reconciler(
            cluster=self.cluster,
            metrics=OperatorMetrics(CollectorRegistry()),
            clock=lambda: self.cluster.now,
            identity="test",
            fleets=Fleets(monotonic=self.cluster.seconds),
        )

    async def make(self, **spec: Any) -> None:
        """Create the service; keyword arguments as in `llm_service`."""
        await self.cluster.create(LLM_SERVICE, llm_service(**spec))
        self.cluster.take_writes()

    async def make_settled(self, **spec: Any) -> None:
        """Create the service and let it come to rest."""
        await self.make(**spec)
        await self.settle()
        self.forget_events()

    async def edit(self, **spec: Any) -> None:
        """Merge this into the spec."""
        await self.cluster.patch(LLM_SERVICE, *KEY, {"spec": spec})
        self.cluster.take_writes()

    async def reconcile(self) -> list[Write]:
        """One reconcile; returns what it wrote."""
        await self.reconciler(KEY)
        return self.cluster.take_writes()

    async def settle(self) -> None:
        """Reconcile, and let the kubelet and time do their part, until nothing is written any more."""
        for _ in range(50):
            wrote = await self.reconcile()
            self.cluster.run_kubelet()
            if self._is_draining():
                self.cluster.now += timedelta(seconds=1)
            elif not wrote and not await self.reconcile():
                return
        raise AssertionError("the service did not come to rest in 50 reconciles")

    def _is_draining(self) -> bool:
        pods = (self.cluster.objects[Address(POD.plural, KEY.namespace, name)] for name in self.pods())
        return any(labels.LEAVING in pod["metadata"].get("annotations", {}) for pod in pods)

    async def status(self) -> Object:
        """The service's status."""
        raw = await self.cluster.get(LLM_SERVICE, *KEY)
        return dict(raw["status"]) if raw is not None else {}

    async def condition(self, kind: str) -> tuple[str, str, str]:
        """A condition's status, reason and message."""
        found = next(item for item in (await self.status())["conditions"] if item["type"] == kind)
        return found["status"], found["reason"], found["message"]

    async def says(self, kind: str) -> tuple[str, str]:
        """A condition's status and reason."""
        return (await self.condition(kind))[:2]

    def pods(self) -> list[str]:
        """The names of all pods."""
        return self.cluster.names(POD)

    def only_pod(self) -> str:
        """The name of the one pod that there is."""
        (name,) = self.pods()
        return name

    def set_pod(self, status: Object, name: str | None = None) -> None:
        """Play the kubelet for one pod."""
        self.cluster.set_pod(KEY.namespace, name or self.only_pod(), status, node="node-1")

    def events(self) -> list[tuple[str, str]]:
        """Type and reason of all events, in the order of their writing."""
        found = [raw for address, raw in self.cluster.objects.items() if address.plural == EVENT.plural]
        return [(raw["type"], raw["reason"]) for raw in found]

    def forget_events(self) -> None:
        """Only later events count."""
        for address in [address for address in self.cluster.objects if address.plural == EVENT.plural]:
            del self.cluster.objects[address]


def merge_patch(target: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7396); the arguments stay as they are."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = copy.deepcopy(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def timestamp(moment: datetime) -> str:
    """A moment as the API server writes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def llm_service(name: str = "smollm2", namespace: str = "models", **spec: Any) -> Object:
    """A small valid LLMService; keyword arguments replace whole fields of its spec."""
    base: Object = {
        "model": {"uri": "file:///models/smollm2", "name": "smollm2"},
        "engine": {"image": "registry.example/engine:1"},
    }
    return {
        "apiVersion": v1alpha1.API_VERSION,
        "kind": v1alpha1.KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": base | spec,
    }


def ready_status(now: datetime = START) -> Object:
    """The status of a pod that serves."""
    return {
        "phase": "Running",
        "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {
                "name": labels.ENGINE_CONTAINER,
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": timestamp(now)}},
                "lastState": {},
            }
        ],
    }


def _running(raw: Object) -> Object:
    """The status that the kubelet gives to a pod whose engine is ready, as far as its readiness gate is open."""
    status = ready_status()
    gates = [condition for condition in raw["status"].get("conditions", ()) if condition["type"] == labels.SERVING_GATE]
    is_open = not raw["spec"].get("readinessGates") or any(gate["status"] == "True" for gate in gates)
    status["conditions"][-1]["status"] = str(is_open)
    status["conditions"] += gates
    restarts = [container["restartCount"] for container in raw["status"].get("containerStatuses", ())]
    status["containerStatuses"][0]["restartCount"] = max(restarts, default=0)
    return status | {"podIP": f"10.0.0.{raw['metadata']['uid'].removeprefix('uid-')}"}


def _by_type(old: Object, patch: Object) -> Object:
    """A strategic merge patch of conditions as the merge patch that does the same."""
    patch = copy.deepcopy(patch)
    new = {condition["type"]: condition for condition in patch.get("status", {}).get("conditions", ())}
    if new:
        kept = [item for item in old.get("status", {}).get("conditions", ()) if item["type"] not in new]
        patch["status"]["conditions"] = [*kept, *new.values()]
    return patch


def engine_status(state: Object, last_end: Object | None = None) -> Object:
    """The status of a pod that is not ready, from its engine's state and how it ended before."""
    container = {
        "name": labels.ENGINE_CONTAINER,
        "restartCount": 1,
        "state": state,
        "lastState": {"terminated": last_end} if last_end else {},
    }
    return {"phase": "Running", "conditions": [], "containerStatuses": [container]}


def _check_preconditions(raw: Object, metadata: Mapping[str, Any]) -> None:
    for name in ("uid", "resourceVersion"):
        if metadata.get(name, raw["metadata"][name]) != raw["metadata"][name]:
            raise ConflictError(409, "Conflict", f"{name} is {raw['metadata'][name]}, not {metadata[name]}")
