"""The engine pod: rendered without its name, hashed into a revision, then given name and owner.

It meets the restricted Pod Security profile and holds no service account token. Liveness is patient, because a restart
costs a model load; readiness is quick, because it only moves traffic. What may change while a pod lives reaches it
through annotations, which are files inside and no part of the revision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from pagefleet_engine.contract import paths
from pagefleet_engine.contract.arguments import API_PORT, CONTROL_PORT
from pagefleet_engine.contract.control import POD_UID_VARIABLE
from pagefleet_operator import labels
from pagefleet_operator.api.pod_spec import PodSpec
from pagefleet_operator.api.quantities import parse_duration, parse_quantity
from pagefleet_operator.api.v1alpha1 import LLMServiceSpec
from pagefleet_operator.manifests.arguments import container_args, engine_arguments
from pagefleet_operator.manifests.ownership import Owner, child_metadata
from pagefleet_operator.manifests.volumes import SCRATCH, mounts, volumes
from pagefleet_operator.resources import POD, Object

USER: Final = 65532
ROUTES_VARIABLE: Final = "PAGEFLEET_ROUTES"
"""For people and for the revision; the engine reads its routes from the control folder."""
TERMINATION_LOG: Final = "/dev/termination-log"
TERMINATION_MARGIN_S: Final = 15  # after the drain: closing connections, and a busy node
LONGEST_START_S: Final = 3600  # weights of hundreds of GB from a network volume


def render_pod(spec: LLMServiceSpec, service: str) -> Object:
    """Everything of a pod that a change of replaces the pod. Raises `ArgumentError` for bad engine arguments."""
    pod = spec.pod
    rendered: Object = {
        "restartPolicy": "Always",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": termination_grace_s(spec),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "readinessGates": [{"conditionType": labels.SERVING_GATE}],
        "containers": [_container(spec)],
        "volumes": volumes(spec),
    }
    return rendered | _placement(pod, service)


def build_pod(rendered: Object, owner: Owner, ordinal: int, annotations: Mapping[str, str] | None = None) -> Object:
    """A pod that can be created; `annotations` are what its engine starts with, and may change while it lives."""
    revision = labels.revision_of(rendered)
    name = labels.pod_name(owner.key.name, revision, ordinal)
    metadata = child_metadata(owner, name, {labels.REVISION: revision})
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {
        "apiVersion": POD.api_version,
        "kind": POD.kind,
        "metadata": metadata,
        "spec": rendered,
    }


def termination_grace_s(spec: LLMServiceSpec) -> int:
    """Long enough for late arrivals, the whole drain and a margin; the kubelet kills what is left."""
    grace_s = engine_arguments(spec).drain_grace
    return math.ceil(parse_duration(spec.drain.timeout).total_seconds() + grace_s) + TERMINATION_MARGIN_S


def _container(spec: LLMServiceSpec) -> Object:
    return {
        "name": labels.ENGINE_CONTAINER,
        "image": spec.engine.image,
        "args": container_args(spec),
        "env": _environment(spec),
        "ports": [
            {"name": "http", "containerPort": API_PORT, "protocol": "TCP"},
            {"name": "control", "containerPort": CONTROL_PORT, "protocol": "TCP"},
        ],
        "resources": spec.pod.resources.model_dump(by_alias=True),
        "startupProbe": _probe(paths.HEALTH, period_s=2, timeout_s=5, failures=LONGEST_START_S // 2),
        "readinessProbe": _probe(paths.READY, period_s=2, timeout_s=5, failures=3),
        "livenessProbe": _probe(paths.HEALTH, period_s=10, timeout_s=10, failures=12),
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts(spec),
    }


def _probe(path: str, *, period_s: int, timeout_s: int, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }


def _environment(spec: LLMServiceSpec) -> list[Object]:
    pod = spec.pod
    ours = {paths.TERMINATION_MESSAGE_VARIABLE: TERMINATION_LOG, "HOME": SCRATCH}
    cpu = pod.resources.limits.get("cpu")
    if cpu is not None:
        # A CPU limit hides no cores: torch would start a thread for each, and the quota would stop them all.
        ours["OMP_NUM_THREADS"] = str(max(1, math.ceil(parse_quantity(cpu))))
    if spec.routes:
        # Engines keep the routes that they started with, so a pod of other names is another pod.
        ours[ROUTES_VARIABLE] = ",".join(sorted(f"{route.name}={route.model}" for route in spec.routes))
    theirs = [variable.model_dump(by_alias=True, exclude_none=True) for variable in pod.env]
    taken = {variable["name"] for variable in theirs}
    plain: list[Object] = [{"name": name, "value": value} for name, value in ours.items() if name not in taken]
    uid: Object = {"name": POD_UID_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    return [*plain, uid, *theirs]


def _placement(pod: PodSpec, service: str) -> Object:
    spread = [
        constraint.model_dump(by_alias=True) | {"labelSelector": {"matchLabels": labels.pod_selector(service)}}
        for constraint in pod.topology_spread_constraints
    ]
    fields: Object = {
        "nodeSelector": dict(pod.node_selector),
        "tolerations": [toleration.model_dump(by_alias=True, exclude_none=True) for toleration in pod.tolerations],
        "topologySpreadConstraints": spread,
        "imagePullSecrets": [reference.model_dump(by_alias=True) for reference in pod.image_pull_secrets],
        "priorityClassName": pod.priority_class_name,
        "runtimeClassName": pod.runtime_class_name,
    }
    return {name: value for name, value in fields.items() if value}
