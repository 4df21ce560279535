"""Whole stories of the control loop on a real cluster: told by `make demo-pressure` and others, and tested."""
