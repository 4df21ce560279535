"""What Helm makes of the chart. Needs the helm program, which the cluster's tools bring, but no cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from e2e.cluster import api as local_cluster
from pagefleet_engine.contract.arguments import API_PORT, CONTROL_PORT
from pagefleet_operator.settings import OperatorSettings, parse_settings

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts" / "pagefleet"
CRD = yaml.safe_load((ROOT / "crds" / "pagefleet.io_llmservices.yaml").read_text())

SERVICE_RULES = [
    (["pagefleet.io"], ["llmservices"], ["get", "list", "watch"]),
    (["pagefleet.io"], ["llmservices/status"], ["patch"]),
    ([""], ["pods"], ["list", "watch", "create", "patch", "delete"]),
    ([""], ["pods/status"], ["patch"]),
    ([""], ["services"], ["get", "list", "watch", "create", "patch"]),
    (["policy"], ["poddisruptionbudgets"], ["get", "list", "watch", "create", "patch", "delete"]),
    (["discovery.k8s.io"], ["endpointslices"], ["list"]),
    (["autoscaling"], ["horizontalpodautoscalers"], ["list"]),
    (["keda.sh"], ["scaledobjects"], ["list"]),
    (["events.k8s.io"], ["events"], ["create"]),
]


@pytest.fixture(scope="session")
def helm():
    path = local_cluster.ensure_client_tools().helm

    def run(*words):
        return subprocess.run([path, *words], capture_output=True, text=True)

    return run


@pytest.fixture(scope="session")
def render(helm):
    """Manifests by (kind, name) for values given as `--set` words."""

    def make(*settings, release="pagefleet"):
        words = [word for setting in settings for word in ("--set", setting)]
        found = helm("template", release, str(CHART), "--namespace", "system", *words)
        assert found.returncode == 0, found.stderr
        documents = [document for document in yaml.safe_load_all(found.stdout) if document]
        return {(document["kind"], document["metadata"]["name"]): document for document in documents}

    return make


def rules(role):
    return [(rule["apiGroups"], rule["resources"], rule["verbs"]) for rule in role["rules"]]


def pod_of(objects, name="pagefleet-operator"):
    return objects["Deployment", name]["spec"]["template"]["spec"]


def test_helm_finds_nothing_to_complain_about(helm):
    found = helm("lint", "--strict", str(CHART))
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_objects_of_a_default_release(render):
    assert sorted(render()) == [
        ("ClusterRole", "pagefleet-llmservices-edit"),
        ("ClusterRole", "pagefleet-llmservices-view"),
        ("ClusterRole", "pagefleet-operator"),
        ("ClusterRoleBinding", "pagefleet-operator"),
        ("CustomResourceDefinition", "llmservices.pagefleet.io"),
        ("Deployment", "pagefleet-operator"),
        ("Lease", "pagefleet-operator"),
        ("Role", "pagefleet-operator-own"),
        ("RoleBinding", "pagefleet-operator-own"),
        ("Secret", "pagefleet-operator-signing-keys"),
        ("Service", "pagefleet-operator"),
        ("ServiceAccount", "pagefleet-operator"),
    ]


def test_every_object_carries_the_release(render):
    for object_ in render().values():
        labels = object_["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "pagefleet"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"


def test_the_operator_has_the_rights_that_it_uses_and_no_other(render):
    objects = render()
    assert rules(objects["ClusterRole", "pagefleet-operator"]) == SERVICE_RULES
    assert [
        (*rule, role.get("resourceNames"))
        for rule, role in zip(
            rules(objects["Role", "pagefleet-operator-own"]),
            objects["Role", "pagefleet-operator-own"]["rules"],
            strict=True,
        )
    ] == [
        (["coordination.k8s.io"], ["leases"], ["create"], None),
        (["coordination.k8s.io"], ["leases"], ["get", "patch"], ["pagefleet-operator"]),
        ([""], ["secrets"], ["get", "patch"], ["pagefleet-operator-signing-keys"]),
    ]


def test_the_release_owns_the_signing_keys_and_never_touches_them(render):
    secret = render(release="other")["Secret", "other-pagefleet-operator-signing-keys"]
    assert set(secret) == {"apiVersion", "kind", "metadata", "type"}
    args = pod_of(render("signingKeys.days=7", release="other"), "other-pagefleet-operator")["containers"][0]["args"]
    settings = parse_settings(args, {})
    assert (settings.signing_secret_namespace, settings.signing_secret_name) == ("system", secret["metadata"]["name"])
    assert settings.signing_key_days == 7


def test_only_the_operator_reaches_the_control_port_where_that_is_asked_for(render):
    assert [kind for kind, _ in render() if kind == "NetworkPolicy"] == []
    objects = render("networkPolicy.namespaces={models}")
    policy = objects["NetworkPolicy", "pagefleet-engines"]
    assert policy["metadata"]["namespace"] == "models"
    assert policy["spec"]["podSelector"] == {
        "matchExpressions": [{"key": "pagefleet.io/service", "operator": "Exists"}]
    }
    api, control = policy["spec"]["ingress"]
    assert api == {"ports": [{"protocol": "TCP", "port": API_PORT}]}
    assert control["ports"] == [{"protocol": "TCP", "port": CONTROL_PORT}]
    (peer,) = control["from"]
    assert peer["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "system"}}
    labels = objects["Deployment", "pagefleet-operator"]["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()


def test_the_release_owns_the_lease_and_says_nothing_of_its_holder(render):
    lease = render(release="other")["Lease", "other-pagefleet-operator"]
    assert set(lease) == {"apiVersion", "kind", "metadata"}
    assert lease["metadata"]["namespace"] == "system"
    args = pod_of(render(release="other"), "other-pagefleet-operator")["containers"][0]["args"]
    assert parse_settings(args, {}).lease_name == lease["metadata"]["name"]


def test_watched_namespaces_get_roles_and_the_cluster_none(render):
    found = render("watchNamespaces={a,b}", "rbac.aggregate=false")
    assert [name for kind, name in found if kind.startswith("ClusterRole")] == []
    helm_words = pod_of(found)["containers"][0]["args"]
    assert parse_settings(helm_words, {}).namespaces == ("a", "b")


def test_each_watched_namespace_has_the_same_rights(helm):
    found = helm("template", "pagefleet", str(CHART), "--namespace", "system", "--set", "watchNamespaces={a,b}")
    roles = [
        document
        for document in yaml.safe_load_all(found.stdout)
        if document and document["kind"] == "Role" and document["metadata"]["name"] == "pagefleet-operator"
    ]
    assert [role["metadata"]["namespace"] for role in roles] == ["a", "b"]
    assert [rules(role) for role in roles] == [SERVICE_RULES, SERVICE_RULES]


def test_the_operator_reads_its_own_arguments(render):
    (container,) = pod_of(render())["containers"]
    assert container["command"] == ["pagefleet-operator"]
    assert parse_settings(container["args"], {}) == OperatorSettings(
        lease_namespace="system",
        lease_name="pagefleet-operator",
        signing_secret_namespace="system",
        signing_secret_name="pagefleet-operator-signing-keys",
        health_port=8080,
    )


def test_the_pod_meets_the_restricted_profile(render):
    pod = pod_of(render())
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert [set(volume) for volume in pod["volumes"]] == [{"name", "emptyDir"}]


def test_one_operator_replaced_by_recreation_and_probed(render):
    spec = render()["Deployment", "pagefleet-operator"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "health"}
    assert {"name": "health", "containerPort": 8080, "protocol": "TCP"} in container["ports"]
    assert container["resources"]["requests"] == {"cpu": "50m", "memory": "128Mi"}


def test_the_service_reaches_the_metrics(render):
    objects = render()
    service = objects["Service", "pagefleet-operator"]["spec"]
    labels = objects["Deployment", "pagefleet-operator"]["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    assert [(port["name"], port["targetPort"]) for port in service["ports"]] == [("health", "health")]


def test_the_crd_is_the_generated_one_and_is_kept(render):
    found = render()["CustomResourceDefinition", "llmservices.pagefleet.io"]
    assert found["spec"] == CRD["spec"]
    assert found["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_the_crd_can_be_left_out_or_go_with_the_release(render):
    name = ("CustomResourceDefinition", "llmservices.pagefleet.io")
    assert name not in render("crds.enabled=false")
    assert "annotations" not in render("crds.keep=false")[name]["metadata"]


IMAGES = {
    "the chart's version by default": ([], "localhost/pagefleet/operator:0.1.0"),
    "a registry and a tag": (
        ["image.repository=r.example:5000/p/operator", "image.tag=1.2"],
        "r.example:5000/p/operator:1.2",
    ),
    "a digest wins": (
        ["image.tag=1.2", "image.digest=sha256:" + "a" * 64],
        "localhost/pagefleet/operator@sha256:" + "a" * 64,
    ),
}


@pytest.mark.parametrize(("settings", "expected"), IMAGES.values(), ids=IMAGES.keys())
def test_images(render, settings, expected):
    assert pod_of(render(*settings))["containers"][0]["image"] == expected


def test_a_release_of_another_name_says_so_everywhere(render):
    found = render(release="team")
    assert ("Deployment", "team-pagefleet-operator") in found
    assert "--lease-name=team-pagefleet-operator" in pod_of(found, "team-pagefleet-operator")["containers"][0]["args"]


def test_an_account_of_ones_own(render):
    found = render("serviceAccount.create=false", "serviceAccount.name=mine", "rbac.create=false")
    assert pod_of(found)["serviceAccountName"] == "mine"
    assert {kind for kind, _ in found} == {"CustomResourceDefinition", "Deployment", "Lease", "Secret", "Service"}


def test_optional_pod_settings(render):
    pod = pod_of(
        render(
            "nodeSelector.disk=fast",
            "priorityClassName=high",
            "image.pullSecrets={registry}",
            "tolerations[0].key=a",
            "tolerations[0].operator=Exists",
        )
    )
    assert pod["nodeSelector"] == {"disk": "fast"}
    assert pod["priorityClassName"] == "high"
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["tolerations"] == [{"key": "a", "operator": "Exists"}]


@pytest.mark.parametrize("setting", ["image.tag=latest", "replicas=2", "crds.kept=true"])
def test_bad_values_are_refused_by_helm(helm, setting):
    found = helm("template", "pagefleet", str(CHART), "--set", setting)
    assert found.returncode != 0
    assert setting.split("=")[0].split(".")[-1] in found.stderr


def test_alerts_are_taken_where_a_token_is_given(render):
    objects = render("alerts.tokenSecret=alertmanager", "alerts.tokenKey=bearer")
    pod = pod_of(objects)
    [container] = pod["containers"]
    assert parse_settings(container["args"], {}).alert_token_file == "/var/run/pagefleet/alerts/bearer"
    assert {"name": "alerts", "secret": {"secretName": "alertmanager"}} in pod["volumes"]
    ports = {port["name"]: port["port"] for port in objects["Service", "pagefleet-operator"]["spec"]["ports"]}
    assert ports == {"health": 8080, "alerts": 8081}


def test_the_pace_of_the_control_loop_may_come_by_set(render):
    [container] = pod_of(render("controlLoop.pace=0.2"))["containers"]
    assert parse_settings(container["args"], {}).loop_pace == 0.2
