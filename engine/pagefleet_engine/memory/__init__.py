"""Who holds which frame: pool, tables, prefix cache and host tier, as bookkeeping only.

Nothing here touches a byte of KV, imports torch or reads a clock; the runner moves the bytes as `ScheduleOutput` says.
"""
