"""The container images of this tree, built once per content.

`build` gives an archive and a reference for each target. The same inputs give the same reference, without building
again. It starts no container and loads nothing into a cluster.
"""

from e2e.images.produce import build
from e2e.images.targets import BuiltImage, ImageError, Target

__all__ = ["BuiltImage", "ImageError", "Target", "build"]
