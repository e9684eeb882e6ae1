"""Logs as one JSON object a line: time, level, message, and the object that it is about."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import IO, Any


class JsonFormatter(logging.Formatter):
    """``extra={"object": "namespace/name"}`` names the ModelDeployment."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if hasattr(record, "object"):
            line["object"] = record.object
        line["message"] = record.getMessage()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up(level: str, stream: IO[str] | None = None) -> None:
    """``level``: debug, info, warning or error."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Each request of our own would be a line, and the client's lines have the bodies, Secrets among them.
    for name in ("httpx", "httpcore", "kubernetes_asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
