"""What a user reads when an LLMService is wrong: from the real API server, or from the operator as a condition."""

from __future__ import annotations

import copy
import json

import pytest

from e2e.eventually import eventually
from e2e.invalid_specs import CASES, VALID, random_specs
from e2e.watch import condition
from pagefleet_operator.api.v1alpha1 import LLMServiceSpec
from pagefleet_operator.api.validation import validate

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("operator")]


def said(text, name):
    """kubectl's words, one line for each problem."""
    head = f'The LLMService "{name}" is invalid: '
    return [line.removeprefix(head).removeprefix("* ") for line in text.splitlines()]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_api_server_refuses_it_with_a_sentence(kubectl, case):
    found = kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(case.manifest()), check=False)
    assert found.returncode == 1
    lines = said(found.stderr, case.name)
    assert case.line in lines or any(line.endswith(case.line) for line in lines if "strict decoding" in line), lines


def test_the_base_of_the_table_is_accepted(kubectl):
    kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(VALID))


def test_the_operator_refuses_what_the_api_server_refuses(kubectl):
    specs = {f"random-{number}": spec for number, spec in enumerate(random_specs(300, seed=7))}
    documents = (json.dumps(VALID | {"metadata": {"name": name}, "spec": spec}) for name, spec in specs.items())
    words = ("create", "--dry-run=server", "-o", "name", "-f", "-")
    found = kubectl(*words, stdin="\n---\n".join(documents), check=False)
    accepted = {line.removeprefix("llmservice.pagefleet.io/") for line in found.stdout.splitlines()}
    assert accepted == {name for name, spec in specs.items() if isinstance(validate(spec), LLMServiceSpec)}
    assert 50 < len(accepted) < 250


def service(name, **changes):
    result = copy.deepcopy(VALID)
    result["metadata"]["name"] = name
    result["spec"] |= changes
    return result


@pytest.fixture
def create(kube, namespace):
    """Create a service; it is deleted afterwards."""
    made = []

    def make(manifest):
        kube.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(manifest))
        made.append(manifest["metadata"]["name"])

    yield make
    for name in made:
        kube.kubectl("delete", "llms", name, "-n", namespace, "--wait=false")


REFUSED = {
    "not-built": (
        {"model": VALID["spec"]["model"] | {"uri": "oci://registry.example/name"}},
        "NotBuilt",
        "spec.model.uri: fetching models from an oci:// registry is not built yet: use a file://, pvc:// or hf:// URI",
    ),
    "unknown-flag": (
        {"engine": VALID["spec"]["engine"] | {"extraArgs": ["--max-model-length=4"]}},
        "InvalidEngineArguments",
        "--max-model-length cannot be an extra argument",
    ),
    "owned-flag": (
        {"engine": VALID["spec"]["engine"] | {"extraArgs": ["--port=1"]}},
        "InvalidEngineArguments",
        "--port cannot be an extra argument",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_operator_refuses_the_rest_with_a_condition(kube, namespace, create, name):
    changes, reason, words = REFUSED[name]
    create(service(name, **changes))

    def refused():
        found = condition(kube.get("llmservice", name, namespace), "Accepted")
        return found if found["status"] == "False" else None

    found = eventually(refused, "Accepted is False", 10)
    assert found["reason"] == reason
    assert words in found["message"]
    assert kube.list("pods", namespace, f"pagefleet.io/service={name}") == []


def test_a_scale_that_breaks_a_rule_is_refused(kube, namespace, create):
    create(service("scaled", autoscaling={"maxReplicas": 2}))
    found = kube.kubectl("scale", "llms", "scaled", "-n", namespace, "--replicas=2", check=False)
    assert "give either replicas or autoscaling" in found.stderr
