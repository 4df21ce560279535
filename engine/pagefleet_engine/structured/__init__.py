"""Structured output: what an answer must look like, the token masks that enforce it, and the verdict on a finished one.

No torch and no HTTP. `constraint` is all that the scheduler and the sampler know of it.
"""
