"""Checkpoints on disk as named tensors, and their mapping to the names our models use."""
