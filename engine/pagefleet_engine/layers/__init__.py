"""Shared building blocks of the models: plain torch, no parameters of their own beyond what they are given."""
