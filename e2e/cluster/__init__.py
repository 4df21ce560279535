"""A real Kubernetes on this Linux machine, inside network, mount and PID namespaces of its own.

Use it through `e2e.cluster.api` or `python -m e2e.cluster`.
"""
