"""One line per entry, as text or as JSON; a traceback, which only a bug of ours causes, keeps its lines in text."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Literal


class JsonFormatter(logging.Formatter):
    """One JSON object per entry."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, logger, message, and the traceback if there is one."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def configure_logging(log_format: Literal["text", "json"]) -> None:
    """Everything to standard error; libraries only when something is wrong."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else text)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("pagefleet_operator").setLevel(logging.INFO)
    # Kopf warns that it handles no signals, which is on purpose: it has a thread, not the process.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
