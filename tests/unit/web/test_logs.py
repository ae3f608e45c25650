"""Log lines: their form, and that no secret gets into one."""

import json
import logging

import pytest

from tidelog.web.logs import JsonFormatter, Redactor, TextFormatter


def record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    """A log record as the logging module makes it."""
    made = logging.makeLogRecord(
        {"name": "tidelog.test", "levelname": "WARNING", "msg": message, "args": arguments}
    )
    made.__dict__.update(extra)
    return made


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer hunter2hunter2",
        "GET /x?token=hunter2&limit=1",
        '{"admin_token": "hunter2"}',
        "auth_signature=hunter2",
        "password: hunter2",
        "postgresql://tide:hunter2@db.example/log",
        "the operator's own words: swordfish",
    ],
)
def test_secrets_do_not_get_into_a_line(text: str) -> None:
    """Known secrets and whatever looks like one are replaced; the rest of the line stays."""
    line = TextFormatter(Redactor(["swordfish", ""])).format(record("%s", text))
    assert "hunter2" not in line
    assert "swordfish" not in line
    assert text.split(maxsplit=1)[0].split("?", maxsplit=1)[0][:6] in line


def test_a_json_line_has_its_fields() -> None:
    """One object per line: time, level, logger, message, extra fields and the exception."""
    try:
        raise ValueError("token=hunter2")
    except ValueError as error:
        failed = record("it failed", endpoint="/x")
        failed.exc_info = (type(error), error, error.__traceback__)
    line = json.loads(JsonFormatter(Redactor([])).format(failed))
    assert line["level"] == "warning"
    assert line["message"] == "it failed"
    assert line["endpoint"] == "/x"
    assert line["time"].endswith("Z")
    assert "ValueError" in line["exception"]
    assert "hunter2" not in line["exception"]


def test_harmless_text_is_left_alone() -> None:
    """Redaction does not eat words that only resemble a secret's name."""
    text = "tokens used: 5; the secretary signed; https://example.org/a@b"
    assert Redactor([])(text) == text
