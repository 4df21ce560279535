"""What is read from a raw pod: its health, and its trouble in a person's words."""

from datetime import UTC, datetime

import pytest

from pagefleet_operator.api.conditions import Reason
from pagefleet_operator.pods import Trouble, observe_pod
from pagefleet_operator.rollout import Health
from pagefleet_operator.testing import ready_status


def raw_pod(status, *, deleted=None, node="node-1"):
    metadata = {
        "name": "smollm2-abc123-0",
        "uid": "uid-1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"pagefleet.io/revision": "abc123"},
        "ownerReferences": [{"uid": "uid-0", "controller": True}],
    }
    if deleted:
        metadata["deletionTimestamp"] = deleted
    spec = {"containers": [{"name": "engine", "image": "registry.example/engine:1"}]}
    return {"metadata": metadata, "spec": spec | ({"nodeName": node} if node else {}), "status": status}


def engine(state, last=None, restarts=0):
    container = {"name": "engine", "state": state, "lastState": {"terminated": last} if last else {}}
    return {"phase": "Running", "containerStatuses": [container | {"restartCount": restarts}]}


NO_CAUSE = "it gave no cause; see kubectl logs --previous"
PROGRESS = "WARNING slow\n2026-01-01 00:00:09,575 INFO ready: model smollm2"
PULLING = 'Back-off pulling image "registry.example/engine:1": ErrImagePull: not found'
TROUBLES = {
    "a pod that no kubelet has seen is starting": ({"phase": "Pending"}, None),
    "a container that is being created is starting": (engine({"waiting": {"reason": "ContainerCreating"}}), None),
    "an engine that loads is starting": (engine({"running": {}}), None),
    "a pod that serves has no trouble": (ready_status(), None),
    "no node fits": (
        {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes: Insufficient memory."}]},
        Trouble(reason=Reason.UNSCHEDULABLE, message="0/1 nodes: Insufficient memory."),
    ),
    "no node has the GPUs": (
        {"conditions": [{"type": "PodScheduled", "status": "False", "message": "Insufficient nvidia.com/gpu."}]},
        Trouble(reason=Reason.INSUFFICIENT_GPU, message="Insufficient nvidia.com/gpu."),
    ),
    "the image is missing": (
        engine({"waiting": {"reason": "ErrImagePull", "message": "not found"}}),
        Trouble(reason=Reason.IMAGE_PULL_FAILED, message="image registry.example/engine:1: not found"),
    ),
    "the image is still missing: the same words, so no new status": (
        engine({"waiting": {"reason": "ImagePullBackOff", "message": PULLING}}),
        Trouble(reason=Reason.IMAGE_PULL_FAILED, message="image registry.example/engine:1: not found"),
    ),
    "a Secret is missing": (
        engine({"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "keys" not found'}}),
        Trouble(reason=Reason.CONTAINER_CONFIG_ERROR, message='CreateContainerConfigError: secret "keys" not found'),
    ),
    "the engine finds no model": (
        engine({"terminated": {"exitCode": 2, "message": "--model /models/x: no such file\n"}}),
        Trouble(reason=Reason.MODEL_MISSING, message="--model /models/x: no such file"),
    ),
    "the engine finds something that is no model": (
        engine({"terminated": {"exitCode": 2, "message": "--model /models/x: not a GGUF file"}}),
        Trouble(reason=Reason.ENGINE_START_FAILED, message="--model /models/x: not a GGUF file"),
    ),
    "the engine refuses to start": (
        engine({"waiting": {"reason": "CrashLoopBackOff"}}, {"exitCode": 2, "message": "--port 8000: in use"}, 3),
        Trouble(reason=Reason.ENGINE_START_FAILED, message="--port 8000: in use"),
    ),
    "the engine was killed for its memory": (
        engine({"waiting": {"reason": "CrashLoopBackOff"}}, {"exitCode": 137, "reason": "OOMKilled"}),
        Trouble(reason=Reason.OUT_OF_MEMORY, message="the engine ran out of memory: raise pod.resources.limits.memory"),
    ),
    "the engine crashed, and the last line of its log tells most": (
        engine({"waiting": {"reason": "CrashLoopBackOff"}}, {"exitCode": 1, "message": "loading\nRuntimeError: boom"}),
        Trouble(reason=Reason.CRASH_LOOP, message="the engine ended with exit code 1: RuntimeError: boom"),
    ),
    "the engine crashed once and runs again: that is no loop": (
        engine({"running": {}}, {"exitCode": 1, "message": "RuntimeError: boom"}, 1),
        Trouble(reason=Reason.ENGINE_RESTARTING, message="the engine ended with exit code 1: RuntimeError: boom"),
    ),
    "the engine ended a moment ago": (
        engine({"terminated": {"exitCode": 0}}),
        Trouble(reason=Reason.ENGINE_RESTARTING, message=f"the engine ended with exit code 0: {NO_CAUSE}"),
    ),
    "the engine was killed: the tail of its log is not why": (
        engine({"running": {"startedAt": "2026-01-01T00:05:01Z"}}, {"exitCode": 137, "message": PROGRESS}, 1),
        Trouble(reason=Reason.ENGINE_RESTARTING, message=f"the engine was killed by signal 9 (SIGKILL): {NO_CAUSE}"),
    ),
    "the engine was killed and said why": (
        engine({"waiting": {"reason": "CrashLoopBackOff"}}, {"exitCode": 134, "message": "Fatal Python error: x"}, 1),
        Trouble(reason=Reason.CRASH_LOOP, message="the engine was killed by signal 6 (SIGABRT): Fatal Python error: x"),
    ),
    "an exit code that is no signal's": (
        engine({"running": {}}, {"exitCode": 255, "message": "[INFO] Listening"}, 1),
        Trouble(reason=Reason.ENGINE_RESTARTING, message=f"the engine ended with exit code 255: {NO_CAUSE}"),
    ),
    "the pod was evicted": (
        {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."},
        Trouble(reason=Reason.POD_FAILED, message="Evicted: The node was low on memory."),
    ),
}


@pytest.mark.parametrize(("status", "want"), TROUBLES.values(), ids=TROUBLES.keys())
def test_trouble(status, want):
    pod = observe_pod(raw_pod(status))
    assert pod.trouble == want
    assert pod.health is (Health.READY if pod.ready else Health.STARTING if want is None else Health.BROKEN)


def unready(since, started="2026-01-01T00:05:01Z", last=None):
    condition = {"type": "Ready", "status": "False", "lastTransitionTime": since}
    return engine({"running": {"startedAt": started}}, last, 1) | {"conditions": [condition]}


KILLED = {"exitCode": 137, "message": PROGRESS, "finishedAt": "2026-01-01T00:05:00Z"}
SERVED = {
    "a pod that starts for the first time": (unready("2026-01-01T00:00:00Z"), False, Health.STARTING),
    "its readiness went with the run before": (unready("2026-01-01T00:05:00Z", last=KILLED), False, Health.BROKEN),
    "in the same second": (unready("2026-01-01T00:05:01Z", last=KILLED), False, Health.BROKEN),
    "unready after it had served": (unready("2026-01-01T00:07:00Z"), True, Health.STARTING),
    "the same, and an older run's end is over": (unready("2026-01-01T00:07:00Z", last=KILLED), True, Health.STARTING),
    "it serves": (ready_status(), False, Health.READY),
}


@pytest.mark.parametrize(("status", "served", "health"), SERVED.values(), ids=SERVED.keys())
def test_an_old_end_is_forgotten_once_the_engine_has_served(status, served, health):
    pod = observe_pod(raw_pod(status))
    assert (pod.served, pod.health) == (served, health)


def test_a_pod_that_is_deleted_leaves_and_is_not_ready_even_if_it_still_says_so():
    pod = observe_pod(raw_pod(ready_status(), deleted="2026-01-01T00:05:25Z"))
    assert pod.leaving
    assert not pod.ready
    assert pod.deadline == datetime(2026, 1, 1, 0, 5, 25, tzinfo=UTC)


def test_identity_comes_from_labels_and_the_controller():
    pod = observe_pod(raw_pod({}, node=None))
    assert (pod.name, pod.uid, pod.owner_uid, pod.revision) == ("smollm2-abc123-0", "uid-1", "uid-0", "abc123")
    assert pod.node is None


def test_a_long_message_is_cut():
    status = engine({"waiting": {"reason": "ErrImagePull", "message": "x" * 5000}})
    trouble = observe_pod(raw_pod(status)).trouble
    assert trouble is not None
    assert len(trouble.message) == 400
