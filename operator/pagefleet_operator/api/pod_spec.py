"""`spec.pod`: the part of a pod that people may set.

Not a pod template: whoever may write an LLMService makes the operator create pods, so nothing here reaches the node,
another service account or a weaker security context. Field names and meanings are those of the core API.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from pagefleet_operator.api.base import ApiModel, MapList, Rule
from pagefleet_operator.api.scalars import Label, ObjectName, Quantity, Text, matching

RESERVED_PREFIX: Final = "pagefleet-"
"""Volumes whose names begin so are the operator's own."""
RESERVED_VARIABLES: Final = "PAGEFLEET_"
"""Environment variables whose names begin so are the operator's own."""

_LabelValue = Annotated[
    str,
    Field(max_length=63),
    matching(
        r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
        "must be a label value: at most 63 letters, digits or any of - _ . and a letter or digit at both ends",
    ),
]
_VariableName = Annotated[
    str,
    Field(min_length=1, max_length=128),
    matching(r"^[A-Za-z_][A-Za-z0-9_]*$", "must be letters, digits or _ and not begin with a digit"),
]
_MountPath = Annotated[
    str,
    Field(min_length=2, max_length=512),
    matching(r"^/[^:\s]+$", "must be an absolute path without ':' and spaces"),
]
Amounts = Annotated[dict[Annotated[str, Field(max_length=316)], Quantity], Field(max_length=16)]
Seconds = Annotated[int, Field(ge=0, le=86_400 * 365)]


class Resources(ApiModel):
    """What the engine container gets."""

    requests: Amounts = Field(default_factory=dict)
    """What the scheduler sets aside."""
    limits: Amounts = Field(default_factory=dict)
    """What the container may use; GPUs are named here, too."""


class Toleration(ApiModel):
    """As in a pod."""

    key: Annotated[str, Field(max_length=316)] | None = None
    """The taint's key. Absent: every key, with operator Exists."""
    operator: Literal["Equal", "Exists"] = "Equal"
    """How `value` is compared."""
    value: _LabelValue | None = None
    """The taint's value."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect. Absent: every effect."""
    toleration_seconds: Seconds | None = None
    """How long a NoExecute taint is tolerated. Absent: for ever."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.operator != 'Exists' || !has(self.value)",
            message="operator Exists takes no value: remove value, or use operator Equal",
            field="value",
            holds=lambda toleration: toleration.operator != "Exists" or toleration.value is None,
        ),
        Rule(
            cel="has(self.key) || self.operator == 'Exists'",
            message="without key only operator Exists is possible",
            field="operator",
            holds=lambda toleration: toleration.key is not None or toleration.operator == "Exists",
        ),
        Rule(
            cel="!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            message="tolerationSeconds needs effect NoExecute",
            field="tolerationSeconds",
            holds=lambda toleration: toleration.toleration_seconds is None or toleration.effect == "NoExecute",
        ),
    )


class KeyReference(ApiModel):
    """One key of a Secret or ConfigMap in the same namespace."""

    name: ObjectName
    """The object's name."""
    key: Annotated[str, Field(min_length=1, max_length=253)]
    """The key in it."""
    optional: bool = False
    """Whether the pod may start without it."""


class VariableSource(ApiModel):
    """Where a variable's value comes from."""

    secret_key_ref: KeyReference | None = None
    """A key of a Secret; the node reads it, the operator does not."""
    config_map_key_ref: KeyReference | None = None
    """A key of a ConfigMap."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.secretKeyRef) != has(self.configMapKeyRef)",
            message="give either secretKeyRef or configMapKeyRef",
            holds=lambda source: (source.secret_key_ref is None) != (source.config_map_key_ref is None),
        ),
    )


class EnvironmentVariable(ApiModel):
    """A variable of the engine container."""

    name: _VariableName
    """The variable's name."""
    value: Annotated[str, Field(max_length=4096)] | None = None
    """Its value."""
    value_from: VariableSource | None = None
    """Where its value comes from."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!(has(self.value) && has(self.valueFrom))",
            message="give either value or valueFrom, not both",
            holds=lambda variable: variable.value is None or variable.value_from is None,
        ),
        Rule(
            cel=f"!self.name.startsWith('{RESERVED_VARIABLES}')",
            message=f"names that begin with {RESERVED_VARIABLES} belong to the operator: choose another one",
            field="name",
            holds=lambda variable: not variable.name.startswith(RESERVED_VARIABLES),
        ),
    )


class EmptyDirVolume(ApiModel):
    """Scratch space that goes with the pod."""

    medium: Literal["", "Memory"] = ""
    """Memory keeps it in RAM, where it counts against the container's limit."""
    size_limit: Quantity | None = None
    """Its largest size."""


class ConfigMapVolume(ApiModel):
    """The keys of a ConfigMap as files."""

    name: ObjectName
    """The ConfigMap's name."""
    optional: bool = False
    """Whether the pod may start without it."""


class SecretVolume(ApiModel):
    """The keys of a Secret as files."""

    secret_name: ObjectName
    """The Secret's name."""
    optional: bool = False
    """Whether the pod may start without it."""


class ClaimVolume(ApiModel):
    """A PersistentVolumeClaim."""

    claim_name: ObjectName
    """The claim's name."""
    read_only: bool = False
    """Whether it is mounted read-only everywhere."""


class Volume(ApiModel):
    """A volume of the pod; the kinds that the restricted Pod Security profile allows and that are of use here."""

    name: Label
    """The volume's name."""
    empty_dir: EmptyDirVolume | None = None
    """Scratch space."""
    config_map: ConfigMapVolume | None = None
    """A ConfigMap."""
    secret: SecretVolume | None = None
    """A Secret."""
    persistent_volume_claim: ClaimVolume | None = None
    """A PersistentVolumeClaim."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="[has(self.emptyDir), has(self.configMap), has(self.secret), has(self.persistentVolumeClaim)]"
            ".filter(given, given).size() == 1",
            message="give exactly one of emptyDir, configMap, secret and persistentVolumeClaim",
            holds=lambda volume: (
                sum(
                    source is not None
                    for source in (volume.empty_dir, volume.config_map, volume.secret, volume.persistent_volume_claim)
                )
                == 1
            ),
        ),
        Rule(
            cel=f"!self.name.startsWith('{RESERVED_PREFIX}')",
            message=f"names that begin with {RESERVED_PREFIX} belong to the operator: choose another one",
            field="name",
            holds=lambda volume: not volume.name.startswith(RESERVED_PREFIX),
        ),
    )


class VolumeMount(ApiModel):
    """Where the engine container sees a volume."""

    name: Label
    """The volume's name."""
    mount_path: _MountPath
    """The folder in the container."""
    sub_path: Text | None = None
    """The folder in the volume. Absent: its root."""
    read_only: bool = False
    """Whether the container may not write to it."""


class LocalReference(ApiModel):
    """An object of the same namespace."""

    name: ObjectName
    """The object's name."""


class TopologySpread(ApiModel):
    """How the pods of this service are spread; the operator adds the label selector."""

    topology_key: Annotated[str, Field(min_length=1, max_length=316)]
    """The node label that tells places apart, such as topology.kubernetes.io/zone."""
    max_skew: Annotated[int, Field(ge=1, le=100)] = 1
    """How uneven the places may be."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = "ScheduleAnyway"
    """What happens when they would be more uneven."""


class PodSpec(ApiModel):
    """The part of the engine pods that people may set."""

    resources: Resources = Resources()
    """What the engine container gets."""
    node_selector: Annotated[dict[Annotated[str, Field(max_length=316)], _LabelValue], Field(max_length=32)] = Field(
        default_factory=dict
    )
    """Labels that a node must have."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] = ()
    """Taints that the pods accept."""
    topology_spread_constraints: Annotated[
        tuple[TopologySpread, ...], Field(max_length=8), MapList(key="topology_key")
    ] = ()
    """How the pods are spread over nodes or zones."""
    env: Annotated[tuple[EnvironmentVariable, ...], Field(max_length=64), MapList(key="name")] = ()
    """Variables of the engine container."""
    volumes: Annotated[tuple[Volume, ...], Field(max_length=16), MapList(key="name")] = ()
    """Volumes of the pod."""
    volume_mounts: Annotated[tuple[VolumeMount, ...], Field(max_length=32), MapList(key="mount_path")] = ()
    """Where the engine container sees them."""
    image_pull_secrets: Annotated[tuple[LocalReference, ...], Field(max_length=8), MapList(key="name")] = ()
    """Secrets for the registry of `engine.image`."""
    priority_class_name: ObjectName | None = None
    """The pods' PriorityClass."""
    runtime_class_name: ObjectName | None = None
    """The pods' RuntimeClass."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.volumeMounts) || self.volumeMounts.all(m, has(self.volumes) && "
            "self.volumes.exists(v, v.name == m.name))",
            message="every entry of volumeMounts must name an entry of volumes",
            field="volumeMounts",
            holds=lambda pod: {mount.name for mount in pod.volume_mounts} <= {volume.name for volume in pod.volumes},
        ),
    )
