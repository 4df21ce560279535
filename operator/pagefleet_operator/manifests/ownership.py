"""Metadata that every child shares: its name, our labels, and the owner through which garbage collection finds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagefleet_operator import labels
from pagefleet_operator.api import v1alpha1
from pagefleet_operator.labels import Key
from pagefleet_operator.resources import Object


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The LLMService that children belong to; the uid tells it from a later one of the same name."""

    key: Key
    uid: str


def child_metadata(owner: Owner, name: str, extra_labels: Mapping[str, str] | None = None) -> Object:
    """`blockOwnerDeletion` stays false: it would need rights on finalizers and could hold up a deletion."""
    return {
        "name": name,
        "namespace": owner.key.namespace,
        "labels": labels.child_labels(owner.key.name) | dict(extra_labels or {}),
        "ownerReferences": [
            {
                "apiVersion": v1alpha1.API_VERSION,
                "kind": v1alpha1.KIND,
                "name": owner.key.name,
                "uid": owner.uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }
