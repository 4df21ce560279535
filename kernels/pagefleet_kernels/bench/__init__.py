"""Measurements of the kernels on a GPU; `kernels/check_gpu.py` runs them. Each returns rows for its table."""
