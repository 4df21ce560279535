"""The table of effects is complete, and rendering pods shows that it tells the truth."""

from __future__ import annotations

import copy

import pytest

from e2e.invalid_specs import VALID
from pagefleet_operator.api.fields import leaves
from pagefleet_operator.api.liveness import EFFECTS, Effect
from pagefleet_operator.api.unbuilt import unbuilt_fields
from pagefleet_operator.api.v1alpha1 import LLMServiceSpec
from pagefleet_operator.api.validation import validate
from pagefleet_operator.labels import revision_of
from pagefleet_operator.manifests.pod import render_pod


def test_every_field_is_listed_once_and_nothing_else():
    assert sorted(EFFECTS) == sorted(leaf.path for leaf in leaves("spec"))


BASE = copy.deepcopy(VALID["spec"]) | {
    "routes": [{"name": "tools", "model": "tiny-tools", "structured": "Validate", "kvPrecision": {}}],
    "pod": {
        "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}},
        "nodeSelector": {"disk": "fast"},
        "tolerations": [
            {"key": "gpu", "operator": "Equal", "value": "a", "effect": "NoExecute", "tolerationSeconds": 5}
        ],
        "topologySpreadConstraints": [{"topologyKey": "zone"}],
        "env": [
            {"name": "PLAIN", "value": "1"},
            {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "CONFIG", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
        ],
        "volumes": [
            {"name": "scratch", "emptyDir": {}},
            {"name": "config", "configMap": {"name": "c"}},
            {"name": "secret", "secret": {"secretName": "s"}},
            {"name": "claim", "persistentVolumeClaim": {"claimName": "p"}},
        ],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        "imagePullSecrets": [{"name": "registry"}],
    },
}


def scaling(**changes):
    return ["autoscaling"], {"maxReplicas": 3} | changes


def precision(**changes):
    return ["routes", 0, "kvPrecision"], changes


BEHAVIOR = "spec.autoscaling.behavior"
PRECISION = "spec.routes[].kvPrecision"
POLICY = {"type": "Pods", "value": 2, "periodSeconds": 30}

# Field -> where in BASE, and another value for it.
EDITS = {
    "spec.model.uri": (["model", "uri"], "pvc://claim/other"),
    "spec.model.name": (["model", "name"], "other"),
    "spec.engine.image": (["engine", "image"], "registry.example/other:2"),
    "spec.engine.maxNumSeqs.initial": (["engine", "maxNumSeqs"], {"initial": 16}),
    "spec.engine.maxNumSeqs.min": (["engine", "maxNumSeqs"], {"min": 2}),
    "spec.engine.maxNumSeqs.max": (["engine", "maxNumSeqs"], {"max": 64}),
    "spec.engine.kvCache.precision": (["engine", "kvCache"], {"precision": "bf16"}),
    "spec.engine.kvCache.swapSpace": (["engine", "kvCache"], {"swapSpace": "1Gi"}),
    "spec.engine.tensorParallelSize": (["engine", "tensorParallelSize"], 2),
    "spec.engine.kvCache.memoryUtilization": (["engine", "kvCache"], {"memoryUtilization": "0.5"}),
    "spec.engine.kvCache.size": (["engine", "kvCache"], {"size": "1Gi"}),
    "spec.engine.kvCache.blockSize": (["engine", "kvCache"], {"blockSize": 32}),
    "spec.engine.maxModelLen": (["engine", "maxModelLen"], 1024),
    "spec.engine.extraArgs": (["engine", "extraArgs"], ["--seed", "7"]),
    "spec.replicas": (["replicas"], 3),
    "spec.autoscaling.mode": scaling(mode="Off"),
    "spec.autoscaling.minReplicas": scaling(minReplicas=2),
    "spec.autoscaling.maxReplicas": scaling(maxReplicas=4),
    "spec.autoscaling.targets.queuedRequestsPerReplica": scaling(targets={"queuedRequestsPerReplica": 9}),
    "spec.autoscaling.targets.timeToFirstToken": scaling(targets={"timeToFirstToken": "2s"}),
    "spec.autoscaling.targets.interTokenLatency": scaling(targets={"interTokenLatency": "80ms"}),
    "spec.autoscaling.targets.kvCacheUsage": scaling(targets={"kvCacheUsage": "0.5"}),
    **{
        f"{BEHAVIOR}.{way}.{field}": scaling(behavior={way: value})
        for way in ("scaleUp", "scaleDown")
        for field, value in {
            "stabilizationWindowSeconds": {"stabilizationWindowSeconds": 60},
            "selectPolicy": {"selectPolicy": "Min"},
            "policies[].type": {"policies": [POLICY]},
            "policies[].value": {"policies": [POLICY]},
            "policies[].periodSeconds": {"policies": [POLICY]},
        }.items()
    },
    "spec.tuning.mode": (["tuning"], {"mode": "Off"}),
    "spec.tuning.maxModelLen.min": (["tuning"], {"maxModelLen": {"min": 64}}),
    "spec.apiKeys.secretName": (["apiKeys"], {"secretName": "keys"}),
    "spec.routes[].structured": (["routes", 0, "structured"], "Off"),
    f"{PRECISION}.policy": precision(policy="Advisory"),
    f"{PRECISION}.fallback": precision(fallback="int8"),
    f"{PRECISION}.controlShare": precision(controlShare="0.1"),
    f"{PRECISION}.allowDemotion": precision(allowDemotion=True),
    f"{PRECISION}.fp8MaxContext": precision(fp8MaxContext=1024),
    f"{PRECISION}.maxSchemaFailureRate": precision(maxSchemaFailureRate="0.1"),
    f"{PRECISION}.minSamples": precision(minSamples=10),
    f"{PRECISION}.windowRequests": precision(windowRequests=400),
    f"{PRECISION}.returnAfter": precision(returnAfter="1h"),
    "spec.routes[].name": (["routes", 0, "name"], "other"),
    "spec.routes[].model": (["routes", 0, "model"], "tiny-other"),
    "spec.drain.timeout": (["drain"], {"timeout": "1m"}),
    "spec.rollout.maxSurge": (["rollout"], {"maxSurge": 1}),
    "spec.rollout.maxUnavailable": (["rollout"], {"maxUnavailable": 2}),
    "spec.paused": (["paused"], True),
    "spec.pod.resources.requests": (["pod", "resources", "requests"], {"memory": "512Mi"}),
    "spec.pod.resources.limits": (["pod", "resources", "limits"], {"memory": "3Gi"}),
    "spec.pod.nodeSelector": (["pod", "nodeSelector"], {"disk": "slow"}),
    "spec.pod.tolerations[].key": (["pod", "tolerations", 0, "key"], "other"),
    "spec.pod.tolerations[].operator": (
        ["pod", "tolerations", 0],
        {"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},
    ),
    "spec.pod.tolerations[].value": (["pod", "tolerations", 0, "value"], "b"),
    "spec.pod.tolerations[].effect": (
        ["pod", "tolerations", 0],
        {"key": "gpu", "operator": "Equal", "value": "a", "effect": "NoSchedule"},
    ),
    "spec.pod.tolerations[].tolerationSeconds": (["pod", "tolerations", 0, "tolerationSeconds"], 9),
    "spec.pod.topologySpreadConstraints[].topologyKey": (
        ["pod", "topologySpreadConstraints", 0, "topologyKey"],
        "rack",
    ),
    "spec.pod.topologySpreadConstraints[].maxSkew": (["pod", "topologySpreadConstraints", 0, "maxSkew"], 2),
    "spec.pod.topologySpreadConstraints[].whenUnsatisfiable": (
        ["pod", "topologySpreadConstraints", 0, "whenUnsatisfiable"],
        "DoNotSchedule",
    ),
    "spec.pod.env[].name": (["pod", "env", 0, "name"], "OTHER"),
    "spec.pod.env[].value": (["pod", "env", 0, "value"], "2"),
    "spec.pod.env[].valueFrom.secretKeyRef.name": (["pod", "env", 1, "valueFrom", "secretKeyRef", "name"], "t"),
    "spec.pod.env[].valueFrom.secretKeyRef.key": (["pod", "env", 1, "valueFrom", "secretKeyRef", "key"], "l"),
    "spec.pod.env[].valueFrom.secretKeyRef.optional": (
        ["pod", "env", 1, "valueFrom", "secretKeyRef", "optional"],
        True,
    ),
    "spec.pod.env[].valueFrom.configMapKeyRef.name": (["pod", "env", 2, "valueFrom", "configMapKeyRef", "name"], "d"),
    "spec.pod.env[].valueFrom.configMapKeyRef.key": (["pod", "env", 2, "valueFrom", "configMapKeyRef", "key"], "l"),
    "spec.pod.env[].valueFrom.configMapKeyRef.optional": (
        ["pod", "env", 2, "valueFrom", "configMapKeyRef", "optional"],
        True,
    ),
    "spec.pod.volumes[].name": (["pod", "volumes", 1, "name"], "other"),
    "spec.pod.volumes[].emptyDir.medium": (["pod", "volumes", 0, "emptyDir"], {"medium": "Memory"}),
    "spec.pod.volumes[].emptyDir.sizeLimit": (["pod", "volumes", 0, "emptyDir"], {"sizeLimit": "1Gi"}),
    "spec.pod.volumes[].configMap.name": (["pod", "volumes", 1, "configMap", "name"], "d"),
    "spec.pod.volumes[].configMap.optional": (["pod", "volumes", 1, "configMap", "optional"], True),
    "spec.pod.volumes[].secret.secretName": (["pod", "volumes", 2, "secret", "secretName"], "t"),
    "spec.pod.volumes[].secret.optional": (["pod", "volumes", 2, "secret", "optional"], True),
    "spec.pod.volumes[].persistentVolumeClaim.claimName": (
        ["pod", "volumes", 3, "persistentVolumeClaim", "claimName"],
        "q",
    ),
    "spec.pod.volumes[].persistentVolumeClaim.readOnly": (
        ["pod", "volumes", 3, "persistentVolumeClaim", "readOnly"],
        True,
    ),
    "spec.pod.volumeMounts[].name": (["pod", "volumeMounts", 0, "name"], "config"),
    "spec.pod.volumeMounts[].mountPath": (["pod", "volumeMounts", 0, "mountPath"], "/other"),
    "spec.pod.volumeMounts[].subPath": (["pod", "volumeMounts", 0, "subPath"], "below"),
    "spec.pod.volumeMounts[].readOnly": (["pod", "volumeMounts", 0, "readOnly"], True),
    "spec.pod.imagePullSecrets[].name": (["pod", "imagePullSecrets", 0, "name"], "other"),
    "spec.pod.priorityClassName": (["pod", "priorityClassName"], "high"),
    "spec.pod.runtimeClassName": (["pod", "runtimeClassName"], "nvidia"),
}


def revision(spec):
    typed = validate(spec)
    assert isinstance(typed, LLMServiceSpec), typed
    assert unbuilt_fields(typed) == []
    return revision_of(render_pod(typed, "service"))


def edited(path, value):
    spec = copy.deepcopy(BASE)
    target = spec
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return spec


@pytest.mark.parametrize("field", EDITS)
def test_an_edit_does_what_the_table_says(field):
    path, value = EDITS[field]
    replaced = revision(edited(path, value)) != revision(BASE)
    assert replaced == (EFFECTS[field] is Effect.REPLACES_PODS)


def test_every_field_is_edited():
    assert sorted(EDITS) == sorted(EFFECTS)
