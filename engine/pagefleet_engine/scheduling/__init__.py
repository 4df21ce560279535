"""Which request computes which tokens in the next step, and what has to move before it.

Pure: no torch, no clock, no randomness. `output.ScheduleOutput` is all that leaves for the runner.
"""
