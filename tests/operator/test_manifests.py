"""The children as whole manifests, and the few rules that a golden file does not show."""

from pathlib import Path

import pytest
import yaml

from pagefleet_engine.contract.arguments import ArgumentError
from pagefleet_operator.api.v1alpha1 import LLMServiceSpec
from pagefleet_operator.labels import Key, revision_of
from pagefleet_operator.manifests.arguments import container_args
from pagefleet_operator.manifests.ownership import Owner
from pagefleet_operator.manifests.pdb import build_budget
from pagefleet_operator.manifests.pod import build_pod, render_pod
from pagefleet_operator.manifests.service import build_headless_service, build_service
from pagefleet_operator.testing import llm_service

GOLDEN = Path(__file__).parent / "golden"
OWNER = Owner(key=Key("models", "smollm2"), uid="uid-1")

FULL = {
    "model": {"uri": "pvc://weights/smollm2/model.gguf", "name": "smollm2"},
    "engine": {
        "image": "registry.example/engine:1",
        "maxNumSeqs": {"initial": 8, "min": 2, "max": 16},
        "kvCache": {"size": "64Mi", "blockSize": 32},
        "maxModelLen": 2048,
        "extraArgs": ["--max-num-batched-tokens", "256"],
    },
    "replicas": 3,
    "routes": [{"name": "tools", "model": "smollm2-tools", "structured": "Validate"}],
    "apiKeys": {"secretName": "smollm2-keys"},
    "drain": {"timeout": "90s"},
    "pod": {
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1500m", "memory": "2Gi"}},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "topologySpreadConstraints": [{"topologyKey": "kubernetes.io/hostname"}],
        "env": [{"name": "LOG", "value": "1"}],
        "volumes": [{"name": "config", "configMap": {"name": "tuning"}}],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/tuning", "readOnly": True}],
        "imagePullSecrets": [{"name": "registry"}],
        "priorityClassName": "serving",
    },
}

ANNOTATIONS = {"pagefleet.io/control-keys": "key", "pagefleet.io/runtime-config": "{}"}


def spec_of(**fields):
    return LLMServiceSpec.model_validate(llm_service(**fields)["spec"])


MANIFESTS = {
    "pod-small": lambda: build_pod(render_pod(spec_of(), "smollm2"), OWNER, 0),
    "pod-full": lambda: build_pod(render_pod(spec_of(**FULL), "smollm2"), OWNER, 2, ANNOTATIONS),
    "service": lambda: build_service(OWNER),
    "service-headless": lambda: build_headless_service(OWNER),
    "pdb": lambda: build_budget(OWNER, 3, 1),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifest_is_the_golden_one(name, update_golden):
    path = GOLDEN / f"{name}.yaml"
    built = MANIFESTS[name]()
    if update_golden:
        path.write_text(yaml.safe_dump(built, sort_keys=False, width=120))
    assert built == yaml.safe_load(path.read_text())


BUDGETS = {
    "one replica may be evicted": (1, 1, None),
    "none needs no budget": (0, 1, None),
    "two replicas lose one at a time": (2, 1, 1),
    "a rollout that may not lose any still lets a node be drained": (3, 0, 2),
    "as many as a rollout may lose": (5, 2, 3),
    "one is always left": (2, 5, 1),
}


@pytest.mark.parametrize(("replicas", "max_unavailable", "want"), BUDGETS.values(), ids=BUDGETS.keys())
def test_budget(replicas, max_unavailable, want):
    budget = build_budget(OWNER, replicas, max_unavailable)
    assert (budget and budget["spec"]["minAvailable"]) == want


REFUSED = {
    "a flag that a field renders": (["--max-num-seqs", "64"], "--max-num-seqs cannot be an extra argument"),
    "the same with an equals sign": (["--model=/etc"], "--model cannot be an extra argument"),
    "a flag that belongs to the operator": (["--port", "1"], "--port cannot be an extra argument"),
    "a flag that nobody knows": (["--fast"], "--fast cannot be an extra argument"),
    "a value out of range": (["--max-num-batched-tokens", "1"], "--max-num-batched-tokens 1: must be at least 16"),
    "a value of the wrong kind": (["--seed", "many"], "--seed: invalid int value: 'many'"),
    "a word of its own": (["hello"], "extra argument 'hello' belongs to no flag: remove it"),
}


@pytest.mark.parametrize(("extra", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_extra_arguments_that_are_refused(extra, message):
    spec = spec_of(engine={"image": "registry.example/engine:1", "extraArgs": extra})
    with pytest.raises(ArgumentError, match=message):
        container_args(spec)


def test_a_model_on_a_hub_is_the_engines_to_fetch_into_a_folder_it_can_write():
    spec = spec_of(model={"uri": "hf://owner/name@v1", "name": "n"})
    rendered = render_pod(spec, "smollm2")
    assert rendered["containers"][0]["args"][:2] == ["--model", "hf://owner/name@v1"]
    assert environment()["HOME"] == "/tmp"
    assert {"name": "pagefleet-scratch", "mountPath": "/tmp"} in rendered["containers"][0]["volumeMounts"]
    assert [volume["name"] for volume in rendered["volumes"] if "persistentVolumeClaim" in volume] == []


HUB = {
    "env": [
        {"name": "HF_HOME", "value": "/models"},
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
    ],
    "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
    "volumeMounts": [{"name": "models", "mountPath": "/models"}],
}


def test_what_comes_from_a_hub_may_be_kept_on_a_claim_and_fetched_with_a_token():
    container = render_pod(spec_of(model={"uri": "hf://owner/name", "name": "n"}, pod=HUB), "smollm2")["containers"][0]
    assert {"readOnly": False} | HUB["volumeMounts"][0] in container["volumeMounts"]
    env = {variable["name"]: variable for variable in container["env"]}
    assert env["HF_HOME"]["value"] == "/models"
    assert env["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "token", "optional": False}


def environment(**pod):
    container = render_pod(spec_of(pod=pod), "smollm2")["containers"][0]
    return {variable["name"]: variable.get("value") for variable in container["env"]}


def test_threads_follow_the_cpu_limit_rounded_up():
    assert "OMP_NUM_THREADS" not in environment()
    assert environment(resources={"limits": {"cpu": "1500m"}})["OMP_NUM_THREADS"] == "2"
    assert environment(resources={"limits": {"cpu": "100m"}})["OMP_NUM_THREADS"] == "1"


def test_a_variable_of_the_user_goes_before_ours():
    assert (
        environment(resources={"limits": {"cpu": "4"}}, env=[{"name": "OMP_NUM_THREADS", "value": "3"}])[
            "OMP_NUM_THREADS"
        ]
        == "3"
    )


def test_a_scratch_folder_of_the_user_replaces_ours():
    volumes = [{"name": "big", "emptyDir": {"sizeLimit": "10Gi"}}]
    mounts = [{"name": "big", "mountPath": "/tmp"}]
    container = render_pod(spec_of(pod={"volumes": volumes, "volumeMounts": mounts}), "smollm2")["containers"][0]
    assert [mount["name"] for mount in container["volumeMounts"]] == ["pagefleet-control", "pagefleet-state", "big"]


def test_the_order_of_routes_is_not_in_the_revision():
    routes = [{"name": name, "model": f"smollm2-{name}"} for name in ("a", "b")]
    one, other = (render_pod(spec_of(routes=ordered), "smollm2") for ordered in (routes, routes[::-1]))
    assert revision_of(one) == revision_of(other)


def test_annotations_are_not_in_the_revision():
    rendered = render_pod(spec_of(), "smollm2")
    bare, annotated = build_pod(rendered, OWNER, 0), build_pod(rendered, OWNER, 0, ANNOTATIONS)
    assert "annotations" not in bare["metadata"]
    assert annotated["metadata"].pop("annotations") == ANNOTATIONS
    assert annotated == bare


def test_what_is_live_is_not_in_the_revision():
    plain = revision_of(render_pod(spec_of(), "smollm2"))
    live = {"replicas": 5, "paused": True, "rollout": {"maxSurge": 1}}
    assert revision_of(render_pod(spec_of(**live), "smollm2")) == plain
    assert revision_of(render_pod(spec_of(drain={"timeout": "1m"}), "smollm2")) != plain
