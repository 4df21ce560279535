"""Attention, sealing and sampling kernels, each beside the torch reference that specifies it.

A leaf: imports torch and triton only, both lazily, so that `pagefleet_kernels.layout` stays torch-free.
"""
