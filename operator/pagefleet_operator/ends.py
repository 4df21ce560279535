"""Why an engine's container ended, from what the kubelet keeps of it.

The kubelet's message is what the engine wrote about its end, or else the tail of its log. A line of ordinary progress
there says what came before the end, not why it came, so it is told to nobody as a cause.
"""

from __future__ import annotations

import re
import signal
from typing import Final

from pagefleet_engine.contract.paths import STARTUP_ERROR_EXIT_CODE
from pagefleet_operator.api.conditions import Reason
from pagefleet_operator.resources import Object

SIGNAL_BASE: Final = 128
"""A process that signal n killed is reported with the exit code 128 + n."""
ORDINARY: Final = re.compile(r"[\d\sTZ:.,+/\[\]-]*(DEBUG|INFO)\b")
BACK_OFF: Final = "CrashLoopBackOff"


def describe_end(end: Object, waiting: str | None) -> tuple[Reason, str]:
    """Reason and sentence for a terminated state; `waiting` is the kubelet's word for what the container waits for."""
    message = end.get("message", "").strip()
    if end.get("reason") == "OOMKilled":
        return Reason.OUT_OF_MEMORY, "the engine ran out of memory: raise pod.resources.limits.memory"
    if end["exitCode"] == STARTUP_ERROR_EXIT_CODE:
        is_missing = "--model" in message.split() and "no such file" in message.lower()
        reason = Reason.MODEL_MISSING if is_missing else Reason.ENGINE_START_FAILED
        return reason, message or "the engine refused to start and said nothing; see its log"
    reason = Reason.CRASH_LOOP if waiting == BACK_OFF else Reason.ENGINE_RESTARTING
    return reason, f"the engine {_how(end['exitCode'])}: {_last_words(message)}"


def _how(exit_code: int) -> str:
    try:
        killer = signal.Signals(exit_code - SIGNAL_BASE)
    except ValueError:
        return f"ended with exit code {exit_code}"
    return f"was killed by signal {killer.value} ({killer.name})"


def _last_words(message: str) -> str:
    last = message.splitlines()[-1].strip() if message else ""
    if not last or ORDINARY.match(last):
        return "it gave no cause; see kubectl logs --previous"
    return last
