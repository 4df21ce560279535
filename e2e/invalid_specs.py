"""LLMServices that must be refused, with the line a user reads from kubectl and what the operator says of a stored one.

One table for both, because both must refuse the same objects: the API server at once, the operator those that were
stored under an older schema.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

NAME: Final = "invalid"
VALID: Final[dict[str, Any]] = {
    "apiVersion": "pagefleet.io/v1alpha1",
    "kind": "LLMService",
    "metadata": {"name": NAME},
    "spec": {
        "model": {"uri": "file:///models/tiny", "name": "tiny"},
        "engine": {"image": "registry.example/pagefleet/engine:1.0"},
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to get it wrong."""

    spec: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the valid spec: dotted path below spec -> value; None removes the field."""
    name: str = NAME
    line: str
    """What the API server says, behind the object's name."""
    problem: str | None
    """What `validate` says; None where it does not look (the object's name)."""

    def manifest(self) -> dict[str, Any]:
        """The whole object."""
        result = copy.deepcopy(VALID)
        result["metadata"]["name"] = self.name
        for path, value in self.spec.items():
            _set(result["spec"], path.split("."), value)
        return result


def random_specs(count: int, seed: int) -> list[dict[str, Any]]:
    """Specs with one to three fields set to values on both sides of their bounds; each is either valid or not."""
    chance = random.Random(seed)
    return [
        Case(spec=dict(chance.sample(_choices(chance), chance.randint(1, 3))), line="", problem=None).manifest()["spec"]
        for _ in range(count)
    ]


def _choices(chance: random.Random) -> list[tuple[str, Any]]:
    return [(path, chance.choice(values)) for path, values in EDGES.items()]


def _set(target: dict[str, Any], path: list[str], value: Any) -> None:
    for step in path[:-1]:
        target = target.setdefault(step, {})
    if value is None:
        del target[path[-1]]
    else:
        target[path[-1]] = value


def _value(spec: Mapping[str, Any], path: str, shown: str, message: str) -> Case:
    """A value in a wrong format; the API server shows the value."""
    return Case(spec=spec, line=f"{path}: Invalid value: {shown}: {message}", problem=f"{path}: {message}")


def _rule(spec: Mapping[str, Any], path: str, message: str) -> Case:
    """A rule over several fields."""
    return Case(spec=spec, line=f"{path}: Invalid value: {message}", problem=f"{path}: {message}")


_ROUTE: Final = {"name": "tools", "model": "tiny-tools"}
_SHARE: Final = 'must be a quoted number from 0.05 to 0.99, such as "0.90"'
_TIMEOUT: Final = "must be a duration from 0s to 24h, such as 30s, 5m or 1h30m"
_SIZE: Final = "must be a quantity of at least 1Mi, such as 512Mi or 4Gi"
_URI: Final = (
    "must be file:///path, pvc://claim/path, hf://owner/name or oci://registry/name, "
    "without spaces and without .. in the path"
)

CASES: Final[dict[str, Case]] = {
    "the model is missing": Case(
        spec={"model": None}, line="spec.model: Required value", problem="spec.model: is required: add it"
    ),
    "the image is missing": Case(
        spec={"engine": {}},
        line="spec.engine.image: Required value",
        problem="spec.engine.image: is required: add it",
    ),
    "the image holds a space": _value(
        {"engine.image": "engine 1.0"},
        "spec.engine.image",
        '"engine 1.0"',
        "must be an image such as registry.example/pagefleet/engine:1.0 or one with @sha256:<digest>",
    ),
    "the model's scheme is unknown": _value({"model.uri": "s3://bucket/m"}, "spec.model.uri", '"s3://bucket/m"', _URI),
    "the model's path climbs": _value({"model.uri": "file:///a/../b"}, "spec.model.uri", '"file:///a/../b"', _URI),
    "the model's path is relative": _value({"model.uri": "file://models"}, "spec.model.uri", '"file://models"', _URI),
    "the model's name holds a space": _value(
        {"model.name": "my model"},
        "spec.model.name",
        '"my model"',
        "must be letters, digits or any of . _ / : - and begin with a letter or digit",
    ),
    "a number is negative": Case(
        spec={"replicas": -1},
        line="spec.replicas: Invalid value: -1: spec.replicas in body should be greater than or equal to 0",
        problem="spec.replicas: must be at least 0",
    ),
    "a number is too large": Case(
        spec={"replicas": 1000},
        line="spec.replicas: Invalid value: 1000: spec.replicas in body should be less than or equal to 256",
        problem="spec.replicas: must be at most 256",
    ),
    "a number is text": Case(
        spec={"replicas": "two"},
        line='spec.replicas: Invalid value: "string": spec.replicas in body must be of type integer: "string"',
        problem="spec.replicas: must be a whole number",
    ),
    "replicas and autoscaling": _rule(
        {"replicas": 2, "autoscaling": {"maxReplicas": 4}},
        "spec.replicas",
        "give either replicas or autoscaling: with autoscaling the operator chooses the number of pods",
    ),
    "autoscaling without an upper bound": Case(
        spec={"autoscaling": {"minReplicas": 1}},
        line="spec.autoscaling.maxReplicas: Required value",
        problem="spec.autoscaling.maxReplicas: is required: add it",
    ),
    "autoscaling upside down": _rule(
        {"autoscaling": {"minReplicas": 4, "maxReplicas": 2}},
        "spec.autoscaling.minReplicas",
        "minReplicas must not be above maxReplicas",
    ),
    "a latency that is no duration": _value(
        {"autoscaling": {"maxReplicas": 2, "targets": {"timeToFirstToken": "2 s"}}},
        "spec.autoscaling.targets.timeToFirstToken",
        '"2 s"',
        "must be a duration from 1ms to 1h, such as 100ms or 2s",
    ),
    "the cap's bounds are upside down": _rule(
        {"engine.maxNumSeqs": {"min": 8, "max": 4}},
        "spec.engine.maxNumSeqs.min",
        "min must not be above max: lower min or raise max",
    ),
    "the first cap is above the capacity": _rule(
        {"engine.maxNumSeqs": {"initial": 64, "max": 32}},
        "spec.engine.maxNumSeqs.initial",
        "initial must lie within min and max",
    ),
    "an unknown precision": Case(
        spec={"engine.kvCache": {"precision": "fp8"}},
        line='spec.engine.kvCache.precision: Unsupported value: "fp8": '
        'supported values: "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4"',
        problem="spec.engine.kvCache.precision: must be 'bf16', 'fp8_e4m3', 'fp8_e5m2', 'int8' or 'int4'",
    ),
    "an impossible block size": Case(
        spec={"engine.kvCache": {"blockSize": 24}},
        line='spec.engine.kvCache.blockSize: Unsupported value: 24: supported values: "8", "16", "32", "64"',
        problem="spec.engine.kvCache.blockSize: must be 8, 16, 32 or 64",
    ),
    "a share above its bound": _value(
        {"engine.kvCache": {"memoryUtilization": "1.0"}}, "spec.engine.kvCache.memoryUtilization", '"1.0"', _SHARE
    ),
    "a share without quotes": Case(
        spec={"engine.kvCache": {"memoryUtilization": 0.9}},
        line='spec.engine.kvCache.memoryUtilization: Invalid value: "number": '
        'spec.engine.kvCache.memoryUtilization in body must be of type string: "number"',
        problem="spec.engine.kvCache.memoryUtilization: must be text: put it in quotes",
    ),
    "a pool of an unknown unit": _value(
        {"engine.kvCache": {"size": "512MB"}}, "spec.engine.kvCache.size", '"512MB"', _SIZE
    ),
    "a pool of nothing": _value({"engine.kvCache": {"size": 0}}, "spec.engine.kvCache.size", "0", _SIZE),
    "a context of nothing": Case(
        spec={"engine.maxModelLen": 0},
        line="spec.engine.maxModelLen: Invalid value: 0: "
        "spec.engine.maxModelLen in body should be greater than or equal to 16",
        problem="spec.engine.maxModelLen: must be at least 16",
    ),
    "a length floor above the length": _rule(
        {"engine.maxModelLen": 1024, "tuning": {"maxModelLen": {"min": 2048}}},
        "spec.tuning.maxModelLen.min",
        "tuning.maxModelLen.min must not be above engine.maxModelLen",
    ),
    "a route named default": _rule(
        {"routes": [{"name": "default", "model": "tiny-2"}]},
        "spec.routes[0].name",
        "a route cannot be named default: requests for the model itself have that name",
    ),
    "two routes of one name": Case(
        spec={"routes": [_ROUTE, _ROUTE | {"model": "tiny-2"}]},
        line='spec.routes[1]: Duplicate value: {"name":"tools"}',
        problem="spec.routes: name 'tools' is used twice: give every entry its own",
    ),
    "two routes of one alias": _rule(
        {"routes": [_ROUTE, _ROUTE | {"name": "other"}]},
        "spec.routes",
        "every route needs a model alias of its own, different from model.name",
    ),
    "a route policy without counting": _rule(
        {"routes": [_ROUTE | {"kvPrecision": {"policy": "Auto"}}]},
        "spec.routes[0].structured",
        "kvPrecision.policy acts on counted schema failures: set structured to Validate, or policy to Off",
    ),
    "a fallback coarser than the engine's precision": _rule(
        {"routes": [_ROUTE | {"kvPrecision": {"fallback": "int4"}}]},
        "spec.routes",
        "kvPrecision.fallback must not be coarser than engine.kvCache.precision; "
        "from fine to coarse: bf16, int8, fp8_e4m3, int4, fp8_e5m2",
    ),
    "a sample larger than the window": _rule(
        {"routes": [_ROUTE | {"kvPrecision": {"minSamples": 100, "windowRequests": 50}}]},
        "spec.routes[0].kvPrecision.minSamples",
        "minSamples must not be above windowRequests: a window never holds more answers than its size",
    ),
    "a drain timeout without a unit": _value({"drain": {"timeout": "300"}}, "spec.drain.timeout", '"300"', _TIMEOUT),
    "a drain timeout of days": _value({"drain": {"timeout": "48h"}}, "spec.drain.timeout", '"48h"', _TIMEOUT),
    "a rollout that cannot move": _rule(
        {"rollout": {"maxSurge": 0, "maxUnavailable": 0}},
        "spec.rollout",
        "maxSurge and maxUnavailable must not both be 0: no pod could ever be replaced",
    ),
    "a resource amount that is none": Case(
        spec={"pod": {"resources": {"limits": {"memory": "4 GB"}}}},
        line='spec.pod.resources.limits[memory]: Invalid value: "4 GB": '
        "must be a quantity of at least 0, such as 500m, 2 or 4Gi",
        problem="spec.pod.resources.limits.memory: must be a quantity of at least 0, such as 500m, 2 or 4Gi",
    ),
    "a variable of the operator's": _rule(
        {"pod": {"env": [{"name": "PAGEFLEET_X", "value": "1"}]}},
        "spec.pod.env[0].name",
        "names that begin with PAGEFLEET_ belong to the operator: choose another one",
    ),
    "a variable with two values": _rule(
        {"pod": {"env": [{"name": "X", "value": "1", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}},
        "spec.pod.env[0]",
        "give either value or valueFrom, not both",
    ),
    "a variable from nowhere": _rule(
        {"pod": {"env": [{"name": "X", "valueFrom": {}}]}},
        "spec.pod.env[0].valueFrom",
        "give either secretKeyRef or configMapKeyRef",
    ),
    "a volume of two kinds": _rule(
        {"pod": {"volumes": [{"name": "v", "emptyDir": {}, "secret": {"secretName": "s"}}]}},
        "spec.pod.volumes[0]",
        "give exactly one of emptyDir, configMap, secret and persistentVolumeClaim",
    ),
    "a volume of the operator's": _rule(
        {"pod": {"volumes": [{"name": "pagefleet-model", "emptyDir": {}}]}},
        "spec.pod.volumes[0].name",
        "names that begin with pagefleet- belong to the operator: choose another one",
    ),
    "a mount of no volume": _rule(
        {"pod": {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}},
        "spec.pod.volumeMounts",
        "every entry of volumeMounts must name an entry of volumes",
    ),
    "a toleration of every key by value": _rule(
        {"pod": {"tolerations": [{"value": "x"}]}},
        "spec.pod.tolerations[0].operator",
        "without key only operator Exists is possible",
    ),
    "a toleration that exists by value": _rule(
        {"pod": {"tolerations": [{"key": "k", "operator": "Exists", "value": "x"}]}},
        "spec.pod.tolerations[0].value",
        "operator Exists takes no value: remove value, or use operator Equal",
    ),
    "a toleration in time of another effect": _rule(
        {"pod": {"tolerations": [{"key": "k", "effect": "NoSchedule", "tolerationSeconds": 5}]}},
        "spec.pod.tolerations[0].tolerationSeconds",
        "tolerationSeconds needs effect NoExecute",
    ),
    "too many engine arguments": Case(
        spec={"engine.extraArgs": ["--seed=1"] * 65},
        line="spec.engine.extraArgs: Too many: 65: must have at most 64 items",
        problem="spec.engine.extraArgs: must have at most 64 entries",
    ),
    "a name too long for a Service": Case(
        name="a" * 51,
        line="metadata.name: Invalid value: must be at most 50 lower-case letters, digits or '-', "
        "and begin with a letter: a Service is named after it",
        problem=None,
    ),
    "a misspelt field": Case(
        spec={"engine.maxModelLength": 4096},
        line='strict decoding error: unknown field "spec.engine.maxModelLength"',
        problem="spec.engine.maxModelLength: is no field of this resource: remove it or correct its spelling",
    ),
}

EDGES: Final[dict[str, list[Any]]] = {
    "model.uri": [
        "file:///a",
        "file:///a/",
        "file:///",
        "file:///..",
        "pvc://c",
        "pvc://C",
        "hf://a/b",
        "hf://a/b@v1.0",
        "hf://a/b@v1.0/q/b.gguf",
        "hf://a/b/c",
        "hf://a",
        "hf://a--b/c",
        "hf://a/b--c@v",
        "hf://a/b@v--1",
        "hf://a/-b",
        "hf://a/b\n",
        "oci://r:1/a",
    ],
    "model.name": ["a", "a/b:c", "", "-a", "a" * 128, "a" * 129, "ü", "a\n"],
    "engine.image": ["a", "a:1", "a:1:2", "r.example:5000/a", "a@sha256:" + "0" * 64, "a@sha256:0", "A b"],
    "engine.maxNumSeqs.max": [0, 1, 2, 4096, 4097],
    "engine.maxNumSeqs.min": [0, 1, 2, 3, 4096],
    "engine.maxNumSeqs.initial": [0, 1, 2, 32, 33],
    "engine.kvCache.precision": ["bf16", "fp8_e4m3", "int4", "BF16"],
    "engine.kvCache.memoryUtilization": ["0.05", "0.049", "0.99", "0.991", "1", ".5", "0.9 ", "0.5\n", "5e-1"],
    "engine.kvCache.size": ["1Mi", "1048575", 1048576, "1023Ki", "1.5Gi", "1e6", "2e6", "-1Gi", "1m", "Gi", "4GB", 0],
    "engine.kvCache.swapSpace": ["0", 0, "1n", "1u", "4Gi", "-0", "-1", "+1", ".5Gi", "1.Gi", "1E3", "1E", "2e-3", "x"],
    "engine.maxModelLen": [15, 16, 10_000_000, 10_000_001],
    "engine.extraArgs": [[], ["--seed=1"], [""], ["x" * 1024], ["x" * 1025]],
    "replicas": [0, 1, 256, 257, -1],
    "autoscaling": [{"maxReplicas": 1}, {"maxReplicas": 0}, {"minReplicas": 2, "maxReplicas": 1}, {}],
    "tuning": [{"mode": "Auto"}, {"mode": "auto"}, {"maxModelLen": {"min": 16}}, {"maxModelLen": {"min": 32}}],
    "routes": [
        [],
        [_ROUTE],
        [_ROUTE, _ROUTE],
        [_ROUTE | {"model": "tiny"}],
        [_ROUTE | {"name": "Default"}],
        [_ROUTE | {"kvPrecision": {"fallback": "fp8_e4m3"}}],
        [_ROUTE | {"structured": "Validate", "kvPrecision": {"policy": "Auto", "controlShare": "0.5"}}],
        [_ROUTE | {"structured": "Validate", "kvPrecision": {"controlShare": "0.51"}}],
        [_ROUTE | {"kvPrecision": {"returnAfter": "59s"}}],
    ],
    "drain.timeout": ["0s", "24h", "24h1s", "1440m", "1441m", "", "1m30s", "30s1m", "1.5h", "5", "5ms", "5m\n"],
    "rollout.maxSurge": [0, 1, 256, 257],
    "rollout.maxUnavailable": [0, 1, 256, 257],
    "pod.resources": [
        {"limits": {"cpu": "500m", "x.example/gpu": 1}},
        {"limits": {"cpu": "a"}},
        {"requests": {"cpu": "-1"}},
    ],
    "pod.env": [[{"name": "A"}], [{"name": "A"}, {"name": "A"}], [{"name": "1A"}], [{"name": "A", "valueFrom": {}}]],
    "pod.volumes": [[{"name": "v", "emptyDir": {}}], [{"name": "v"}], [{"name": "v", "emptyDir": {"sizeLimit": "-1"}}]],
    "pod.nodeSelector": [{"a": ""}, {"a": "b c"}, {"a": "b" * 63}, {"a": "b" * 64}],
    "pod.tolerations": [[{"operator": "Exists"}], [{}], [{"key": "a", "value": "-"}]],
}
"""Values around the bounds, by dotted path below spec."""
