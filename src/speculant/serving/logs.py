"""Structured logs: one line per event, key=value or JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from typing import Any


class FactsFormatter(logging.Formatter):
    """Formats a record and its facts on one line."""

    def __init__(self, *, as_json: bool) -> None:
        """Choose JSON, or key=value."""
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        facts: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        facts |= getattr(record, "facts", {})
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        if self._as_json:
            return json.dumps(facts, default=str)
        return " ".join(f"{name}={_plain(value)}" for name, value in facts.items())


def configure_logging(log_format: str) -> None:
    """Send the server's and uvicorn's logs to standard error, in the format "text" or "json"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FactsFormatter(as_json=log_format == "json"))
    for name, level in {"speculant": logging.INFO, "uvicorn": logging.WARNING}.items():
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


def _plain(value: Any) -> str:
    """Return a value as one word, quoted if it contains spaces, quotes or line breaks."""
    text = str(value)
    return text if text.isprintable() and not any(each in text for each in ' "=') else json.dumps(text)
