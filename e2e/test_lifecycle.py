"""The whole line on real parts: Helm install, apply, answer, loss, change, deletion, uninstall.

The tests are one story and run in the order of this file; each leaves the service Ready for the next.
"""

from __future__ import annotations

import json
import time

import pytest

from e2e import demo
from e2e.eventually import eventually
from e2e.watch import condition, is_ready, wait_ready
from pagefleet_operator.control.service import PUBLISH_EVERY_S

pytestmark = pytest.mark.e2e

NAME = "smollm2"
CHILD_KINDS = ("pods", "services", "endpointslices", "poddisruptionbudgets")


@pytest.fixture(scope="module")
def manifest(built_images, namespace):
    service = demo.example_service(built_images["engine-demo"])
    service["metadata"]["namespace"] = namespace
    return service


@pytest.fixture(scope="module")
def service(kube, operator, namespace, manifest):
    kube.apply(manifest)
    return wait_ready(kube, NAME, print, namespace)


def live_pods(kube, namespace):
    pods = kube.list("pods", namespace, f"pagefleet.io/service={NAME}")
    return {pod["metadata"]["name"]: pod for pod in pods if "deletionTimestamp" not in pod["metadata"]}


def serving(kube, namespace):
    """How many replicas are ready, by the status."""
    return kube.get("llmservice", NAME, namespace)["status"].get("readyReplicas", 0)


def settled(kube, namespace):
    """The service when it is Ready and no pod is leaving."""
    service = kube.get("llmservice", NAME, namespace)
    leaving = [p for p in kube.list("pods", namespace) if "deletionTimestamp" in p["metadata"]]
    return service if is_ready(service) and not leaving else None


def test_apply_becomes_ready_and_answers(kube, service, namespace):
    assert {c["type"]: c["status"] for c in service["status"]["conditions"]}["Accepted"] == "True"
    assert "Paris" in demo.ask(kube, NAME, demo.QUESTION, namespace)


def test_columns_say_what_is(kube, service, namespace):
    header, row = kube.kubectl("get", "llms", NAME, "-n", namespace).stdout.splitlines()
    assert header.split() == ["NAME", "READY", "REPLICAS", "MAXSEQS", "KV", "REASON", "AGE"]
    assert row.split()[:3] == [NAME, "True", "1/1"]


def test_a_killed_engine_process_is_restarted_and_the_status_follows(kube, cluster, service, namespace):
    (pod,) = live_pods(kube, namespace).values()
    cluster.kill_container(pod["metadata"]["uid"], "engine")
    eventually(lambda: not is_ready(kube.get("llmservice", NAME, namespace)), "not Ready after the kill")
    wait_ready(kube, NAME, print, namespace)
    (again,) = live_pods(kube, namespace).values()
    assert again["metadata"]["uid"] == pod["metadata"]["uid"]
    assert again["status"]["containerStatuses"][0]["restartCount"] == 1
    assert "Paris" in demo.ask(kube, NAME, demo.QUESTION, namespace)


def test_a_deleted_pod_is_replaced(kube, service, namespace):
    ((name, before),) = live_pods(kube, namespace).items()
    kube.kubectl("delete", "pod", name, "-n", namespace, "--wait=false")
    eventually(
        lambda: before["metadata"]["uid"] not in {p["metadata"]["uid"] for p in live_pods(kube, namespace).values()},
        "the old pod is leaving",
    )
    eventually(lambda: settled(kube, namespace), "Ready again with a new pod")
    (after,) = live_pods(kube, namespace).values()
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


def test_a_changed_length_replaces_the_pods_one_by_one(kube, service, namespace, manifest):
    kube.kubectl("patch", "llms", NAME, "-n", namespace, "--type=merge", "-p", '{"spec": {"replicas": 2}}')
    eventually(lambda: serving(kube, namespace) == 2 and settled(kube, namespace), "two serving pods", 240)
    before = set(live_pods(kube, namespace))
    kube.kubectl(
        "patch", "llms", NAME, "-n", namespace, "--type=merge", "-p", '{"spec": {"engine": {"maxModelLen": 1024}}}'
    )
    ready_seen = []

    def replaced():
        ready_seen.append(serving(kube, namespace))
        return ready_seen[-1] == 2 and settled(kube, namespace) and not before & set(live_pods(kube, namespace))

    eventually(replaced, "both pods replaced", 300)
    assert min(ready_seen) >= 1, "a replica was ready at every moment"
    arguments = [pod["spec"]["containers"][0]["args"] for pod in live_pods(kube, namespace).values()]
    assert all(words[words.index("--max-model-len") + 1] == "1024" for words in arguments)
    kube.apply(manifest)
    eventually(lambda: settled(kube, namespace) and len(live_pods(kube, namespace)) == 1, "back to the example", 300)


def test_applying_twice_writes_nothing(kube, service, namespace, manifest):
    eventually(lambda: settled(kube, namespace), "at rest")
    wait_for_a_quiet_status(kube, namespace)
    before = versions(kube, namespace)
    kube.apply(manifest)
    for change in ("example.com/wakes=the-operator", "example.com/wakes-"):
        seen = reconciles(kube)
        kube.kubectl("annotate", "llms", NAME, "-n", namespace, change)
        eventually(lambda seen=seen: reconciles(kube) > seen, "a reconcile after the change of an annotation")
    after = versions(kube, namespace)
    assert {key: after[key] for key in before} == before


def wait_for_a_quiet_status(kube, namespace):
    """New engines are measured for a minute before the control loop has nothing more to say of them."""
    seen = {}

    def is_quiet():
        text = json.dumps(kube.get("llmservice", NAME, namespace)["status"], sort_keys=True)
        seen.setdefault(text, time.monotonic())
        return time.monotonic() - seen[text] > PUBLISH_EVERY_S + 10

    eventually(is_quiet, "a status that stays as it is", 240, poll_s=2)


def versions(kube, namespace):
    """uid -> resourceVersion of every child, and the service's status."""
    children = [item for kind in CHILD_KINDS for item in kube.list(kind, namespace)]
    found = {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in children}
    return {**found, "status": json.dumps(kube.get("llmservice", NAME, namespace)["status"], sort_keys=True)}


def reconciles(kube):
    path = f"/api/v1/namespaces/{demo.SYSTEM_NAMESPACE}/services/http:pagefleet-operator:health/proxy/metrics"
    text = kube.kubectl("get", "--raw", path).stdout
    return sum(
        float(line.split()[-1]) for line in text.splitlines() if line.startswith("pagefleet_operator_reconciles_total")
    )


def test_kubectl_diff_is_empty(kube, service, manifest):
    found = kube.kubectl("diff", "-f", "-", stdin=json.dumps(manifest), check=False)
    assert (found.returncode, found.stdout) == (0, "")


def test_a_missing_model_is_named_in_the_condition(kube, service, namespace, manifest):
    broken = json.loads(json.dumps(manifest))
    broken["metadata"]["name"] = "no-model"
    broken["spec"]["model"]["uri"] = "file:///models/absent"
    kube.apply(broken)

    def told():
        found = condition(kube.get("llmservice", "no-model", namespace), "ModelReady")
        return found if found["status"] == "False" and "/models/absent" in found["message"] else None

    eventually(told, "ModelReady=False names the missing path")
    kube.kubectl("delete", "llms", "no-model", "-n", namespace)


def test_a_missing_image_is_named_in_the_condition(kube, service, namespace, manifest):
    broken = json.loads(json.dumps(manifest))
    broken["metadata"]["name"] = "no-image"
    broken["spec"]["engine"]["image"] = "localhost/pagefleet/absent:none"
    kube.apply(broken)

    def told():
        found = condition(kube.get("llmservice", "no-image", namespace), "Ready")
        return found if "localhost/pagefleet/absent:none" in found["message"] else None

    eventually(told, "Ready names the missing image")
    kube.kubectl("delete", "llms", "no-image", "-n", namespace)


def test_deleting_the_service_removes_every_child(kube, service, namespace):
    kube.kubectl("delete", "llms", NAME, "-n", namespace)
    eventually(lambda: not [item for kind in CHILD_KINDS for item in kube.list(kind, namespace)], "no child left")


def test_uninstalling_leaves_nothing_but_the_crd(kube, service):
    kube.helm("uninstall", demo.RELEASE, "--namespace", demo.SYSTEM_NAMESPACE, "--wait")
    selector = f"app.kubernetes.io/instance={demo.RELEASE}"
    kinds = "deployments,pods,services,serviceaccounts,secrets,roles,rolebindings,leases"
    eventually(lambda: not kube.list(kinds, demo.SYSTEM_NAMESPACE, selector), "nothing of the release left")
    assert kube.kubectl("get", "leases", "-n", demo.SYSTEM_NAMESPACE, "-o", "name").stdout == ""
    cluster_wide = kube.kubectl("get", "clusterroles,clusterrolebindings", "-l", selector, "-o", "name").stdout
    assert cluster_wide == ""
    assert kube.kubectl("get", "crd", "llmservices.pagefleet.io", "-o", "name").stdout.strip()
