"""The engine pod's volumes and where they are mounted: ours, then those of `spec.pod`."""

from __future__ import annotations

from typing import Final

from pagefleet_operator import labels
from pagefleet_operator.api.v1alpha1 import LLMServiceSpec
from pagefleet_operator.manifests.arguments import (
    API_KEYS_MOUNT,
    CONTROL_MOUNT,
    KEYS_FILE,
    MODEL_MOUNT,
    RUNTIME_FILE,
    STATE_MOUNT,
    model_claim,
)
from pagefleet_operator.resources import Object

SCRATCH: Final = "/tmp"
OWNER_AND_GROUP_READ: Final = 0o440
FILES: Final = {KEYS_FILE: labels.CONTROL_KEYS, RUNTIME_FILE: labels.RUNTIME_CONFIG}
"""Files of the control folder, and the annotation that each one shows."""


def mounts(spec: LLMServiceSpec) -> list[Object]:
    """Where the engine container finds each volume. A scratch folder of the user's replaces ours."""
    theirs = [mount.model_dump(by_alias=True, exclude_none=True) for mount in spec.pod.volume_mounts]
    ours: list[Object] = []
    if all(mount.mount_path != SCRATCH for mount in spec.pod.volume_mounts):
        ours.append({"name": "pagefleet-scratch", "mountPath": SCRATCH})
    ours.append({"name": "pagefleet-control", "mountPath": CONTROL_MOUNT, "readOnly": True})
    ours.append({"name": "pagefleet-state", "mountPath": STATE_MOUNT})
    if spec.api_keys is not None:
        ours.append({"name": "pagefleet-api-keys", "mountPath": API_KEYS_MOUNT, "readOnly": True})
    if model_claim(spec.model.uri) is not None:
        ours.append({"name": "pagefleet-model", "mountPath": MODEL_MOUNT, "readOnly": True})
    return ours + theirs


def volumes(spec: LLMServiceSpec) -> list[Object]:
    """What the pod brings. The state outlives a restart of the container, not the pod."""
    ours: list[Object] = [
        {"name": "pagefleet-scratch", "emptyDir": {}},
        {"name": "pagefleet-control", "downwardAPI": {"items": [_file(*item) for item in FILES.items()]}},
        {"name": "pagefleet-state", "emptyDir": {}},
    ]
    if spec.api_keys is not None:
        secret = {"secretName": spec.api_keys.secret_name, "defaultMode": OWNER_AND_GROUP_READ}
        ours.append({"name": "pagefleet-api-keys", "secret": secret})
    claim = model_claim(spec.model.uri)
    if claim is not None:
        ours.append({"name": "pagefleet-model", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
    return ours + [volume.model_dump(by_alias=True, exclude_none=True) for volume in spec.pod.volumes]


def _file(path: str, annotation: str) -> Object:
    return {"path": path, "fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}
