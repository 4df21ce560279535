"""HTTP paths of the engine that probes, the operator and clients rely on, and the exit code of a start-up error."""

from typing import Final

HEALTH: Final = "/health"
READY: Final = "/ready"
METRICS: Final = "/metrics"

STARTUP_ERROR_EXIT_CODE: Final = 2
"""The engine cannot run with what it was given; restarting it will not help."""

TERMINATION_MESSAGE_VARIABLE: Final = "PAGEFLEET_TERMINATION_MESSAGE_PATH"
"""Environment variable with the file for the one line that says why the engine gave up (the container's termination
message in a pod). Unset: standard error only."""
