"""Structured logs on standard error, with secrets taken out."""

import json
import logging
import re
import sys
import time
from collections.abc import Iterable
from typing import Literal

_HIDDEN = "********"

_SECRET_SHAPES = (
    re.compile(r"(?<=bearer )[^\s\"',]+", re.IGNORECASE),
    re.compile(
        r"(?<![\w-])((?:access_|admin_|auth_)?(?:token|signature|secret|password|api_key)"
        r"[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,}]+",
        re.IGNORECASE,
    ),
    re.compile(r"(?<=://)([^:/@\s]*:)[^@/\s]+(?=@)"),
)
"""What a secret looks like in a message: after `Bearer`, as the value of a name that says so, or as
the password of a URL."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "taskName"}


class Redactor:
    """Replaces secrets in text: those it was told, and whatever looks like one."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = sorted({secret for secret in secrets if secret}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def __call__(self, text: str) -> str:
        """`text` without secrets."""
        if self._known is not None:
            text = self._known.sub(_HIDDEN, text)
        for shape in _SECRET_SHAPES:
            text = shape.sub(lambda found: (found[1] if found.re.groups else "") + _HIDDEN, text)
        return text


class _Formatter(logging.Formatter):
    def __init__(self, redact: Redactor, process: str = "") -> None:
        """`process` is the name of this one among several that write to one log; or empty."""
        super().__init__()
        self._redact = redact
        self._process = process

    def _time(self, record: logging.LogRecord) -> str:
        whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{whole}.{int(record.msecs):03d}Z"

    def _fields(self, record: logging.LogRecord) -> dict[str, str]:
        fields = {name: str(value) for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return fields


class TextFormatter(_Formatter):
    """One line a person can read, then whatever belongs to it."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        line = f"{self._time(record)} {record.levelname.lower():7} "
        line += f"[{self._process}] " if self._process else ""
        line += f"{record.name}: {record.getMessage()}"
        for name, value in self._fields(record).items():
            line += f"\n{value}" if "\n" in value else f" {name}={value}"
        return self._redact(line)


class JsonFormatter(_Formatter):
    """One JSON object per line, for collectors."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        fields = {
            "time": self._time(record),
            "level": record.levelname.lower(),
            **({"process": self._process} if self._process else {}),
            "logger": record.name,
            "message": record.getMessage(),
            **self._fields(record),
        }
        return json.dumps({name: self._redact(value) for name, value in fields.items()})


def configure(
    level: Literal["debug", "info", "warning", "error"],
    style: Literal["text", "json"],
    secrets: Iterable[str],
    process: str = "",
) -> None:
    """Send all logs of this process to standard error in the given style.

    Each line names the `process`, if several write to the same place.
    """
    formatter = JsonFormatter if style == "json" else TextFormatter
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(Redactor(secrets), process))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
