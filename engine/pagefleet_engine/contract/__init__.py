"""What the operator and the engine agree on: arguments, metric names, paths and KV arithmetic.

The only part of the engine that the operator may import; it loads no torch, no HTTP framework and no clock.
"""
