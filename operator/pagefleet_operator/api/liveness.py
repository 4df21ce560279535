"""Which edit of a spec takes effect on running pods, and which one replaces them.

Pure data, complete: a test walks the schema, and another renders pods to see that the table tells the truth.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Effect(StrEnum):
    """What an edit of a field does."""

    LIVE = "live"
    """Takes effect without replacing a pod."""
    REPLACES_PODS = "replaces pods"
    """Pods of the old revision are replaced as `spec.rollout` says."""


_LIVE: Final = (
    "spec.engine.maxNumSeqs.min",
    "spec.replicas",
    "spec.autoscaling.mode",
    "spec.autoscaling.minReplicas",
    "spec.autoscaling.maxReplicas",
    "spec.autoscaling.targets.queuedRequestsPerReplica",
    "spec.autoscaling.targets.timeToFirstToken",
    "spec.autoscaling.targets.interTokenLatency",
    "spec.autoscaling.targets.kvCacheUsage",
    "spec.autoscaling.behavior.scaleUp.stabilizationWindowSeconds",
    "spec.autoscaling.behavior.scaleUp.selectPolicy",
    "spec.autoscaling.behavior.scaleUp.policies[].type",
    "spec.autoscaling.behavior.scaleUp.policies[].value",
    "spec.autoscaling.behavior.scaleUp.policies[].periodSeconds",
    "spec.autoscaling.behavior.scaleDown.stabilizationWindowSeconds",
    "spec.autoscaling.behavior.scaleDown.selectPolicy",
    "spec.autoscaling.behavior.scaleDown.policies[].type",
    "spec.autoscaling.behavior.scaleDown.policies[].value",
    "spec.autoscaling.behavior.scaleDown.policies[].periodSeconds",
    "spec.tuning.mode",
    "spec.tuning.maxModelLen.min",
    "spec.routes[].structured",
    "spec.routes[].kvPrecision.policy",
    "spec.routes[].kvPrecision.fallback",
    "spec.routes[].kvPrecision.controlShare",
    "spec.routes[].kvPrecision.allowDemotion",
    "spec.routes[].kvPrecision.fp8MaxContext",
    "spec.routes[].kvPrecision.maxSchemaFailureRate",
    "spec.routes[].kvPrecision.minSamples",
    "spec.routes[].kvPrecision.windowRequests",
    "spec.routes[].kvPrecision.returnAfter",
    "spec.rollout.maxSurge",
    "spec.rollout.maxUnavailable",
    "spec.paused",
)

_REPLACES_PODS: Final = (
    "spec.model.uri",
    "spec.model.name",
    "spec.engine.image",
    "spec.engine.maxNumSeqs.initial",
    "spec.engine.maxNumSeqs.max",
    "spec.engine.kvCache.precision",
    "spec.engine.kvCache.memoryUtilization",
    "spec.engine.kvCache.size",
    "spec.engine.kvCache.swapSpace",
    "spec.engine.kvCache.blockSize",
    "spec.engine.maxModelLen",
    "spec.engine.tensorParallelSize",
    "spec.engine.extraArgs",
    "spec.routes[].name",
    "spec.routes[].model",
    "spec.apiKeys.secretName",
    "spec.drain.timeout",
    "spec.pod.resources.requests",
    "spec.pod.resources.limits",
    "spec.pod.nodeSelector",
    "spec.pod.tolerations[].key",
    "spec.pod.tolerations[].operator",
    "spec.pod.tolerations[].value",
    "spec.pod.tolerations[].effect",
    "spec.pod.tolerations[].tolerationSeconds",
    "spec.pod.topologySpreadConstraints[].topologyKey",
    "spec.pod.topologySpreadConstraints[].maxSkew",
    "spec.pod.topologySpreadConstraints[].whenUnsatisfiable",
    "spec.pod.env[].name",
    "spec.pod.env[].value",
    "spec.pod.env[].valueFrom.secretKeyRef.name",
    "spec.pod.env[].valueFrom.secretKeyRef.key",
    "spec.pod.env[].valueFrom.secretKeyRef.optional",
    "spec.pod.env[].valueFrom.configMapKeyRef.name",
    "spec.pod.env[].valueFrom.configMapKeyRef.key",
    "spec.pod.env[].valueFrom.configMapKeyRef.optional",
    "spec.pod.volumes[].name",
    "spec.pod.volumes[].emptyDir.medium",
    "spec.pod.volumes[].emptyDir.sizeLimit",
    "spec.pod.volumes[].configMap.name",
    "spec.pod.volumes[].configMap.optional",
    "spec.pod.volumes[].secret.secretName",
    "spec.pod.volumes[].secret.optional",
    "spec.pod.volumes[].persistentVolumeClaim.claimName",
    "spec.pod.volumes[].persistentVolumeClaim.readOnly",
    "spec.pod.volumeMounts[].name",
    "spec.pod.volumeMounts[].mountPath",
    "spec.pod.volumeMounts[].subPath",
    "spec.pod.volumeMounts[].readOnly",
    "spec.pod.imagePullSecrets[].name",
    "spec.pod.priorityClassName",
    "spec.pod.runtimeClassName",
)

EFFECTS: Final[dict[str, Effect]] = {path: Effect.LIVE for path in _LIVE} | {
    path: Effect.REPLACES_PODS for path in _REPLACES_PODS
}
