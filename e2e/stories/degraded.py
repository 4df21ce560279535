"""A test engine whose FP8 frames are far coarser than FP8 is: what a KV cache that hurts a model looks like.

Python imports `sitecustomize` by itself from a folder on PYTHONPATH, here a ConfigMap. The module below rounds what is
about to be sealed in FP8 to a few levels of its tile's largest value. BF16 frames stay as they are, and so does
everything that counts, compares and decides.
"""

from __future__ import annotations

from typing import Any, Final

LEVELS: Final = 5
FOLDER: Final = "/etc/degraded"

SITECUSTOMIZE: Final = f"""
import torch
from pagefleet_kernels import codec

exact = codec._encode_fp8


def coarse(x, precision):
    largest = x.abs().amax(dim=(-1, -2), keepdim=True).clamp(min=1e-30)
    return exact(torch.round(x / largest * {LEVELS}) / {LEVELS} * largest, precision)


codec._encode_fp8 = coarse
"""


def config_map(name: str, namespace: str) -> dict[str, Any]:
    """The ConfigMap with the module."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": {"sitecustomize.py": SITECUSTOMIZE},
    }


def mounted(name: str) -> dict[str, Any]:
    """What `spec.pod` needs for it."""
    return {
        "volumes": [{"name": "degraded", "configMap": {"name": name}}],
        "volumeMounts": [{"name": "degraded", "mountPath": FOLDER, "readOnly": True}],
        "env": [{"name": "PYTHONPATH", "value": FOLDER}],
    }
