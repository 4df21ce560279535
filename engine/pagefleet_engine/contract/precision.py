"""The precisions in which a frame of the KV cache can be kept, as the frame layout defines them."""

from pagefleet_kernels.layout import Precision

__all__ = ["Precision"]
