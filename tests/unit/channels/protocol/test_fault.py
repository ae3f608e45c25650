"""The envelope of every refusal of the HTTP API (channels 8.2)."""

import json

import pytest

from tidelog.channels.protocol import fault
from tidelog.channels.protocol.fault import Fault

CLASSES = [
    (fault.feature_disabled("X", "s"), 422, "feature_disabled"),
    (fault.history_disabled("X", "s"), 422, "feature_disabled"),
    (fault.not_found("S", "X"), 404, "not_found"),
    (fault.app_not_found("k"), 404, "app_not_found"),
    (fault.invalid_input("t"), 400, "invalid_input"),
    (fault.payload_conflict(), 400, "invalid_input"),
    (fault.missing_channel_info(), 400, "missing_channel_info"),
    (fault.limit_exceeded("t"), 400, "limit_exceeded"),
    (fault.payload_too_large("t"), 413, "payload_too_large"),
    (fault.auth_failed("t"), 401, "auth_failed"),
    (fault.rate_limited(7), 429, "rate_limited"),
    (fault.backpressure(), 503, "backpressure"),
]


@pytest.mark.parametrize(("refused", "status", "code"), CLASSES)
def test_each_class_has_its_status_and_code(refused: Fault, status: int, code: str) -> None:
    """Status, code and envelope of a class are those of the contract's table."""
    response = refused.response()
    assert (response.status, response.content_type) == (status, "application/json")
    assert json.loads(response.body) == {"error": str(refused), "code": code, "status": status}


def test_sentences_of_the_contract_are_given_verbatim() -> None:
    """Where the contract fixes a sentence, it is that sentence; the setting follows it."""
    disabled = "Versioned messages are disabled for channel 'X' (setting s)"
    assert str(fault.feature_disabled("X", "s")) == disabled
    assert str(fault.not_found("S", "X")) == "Message 'S' was not found in channel 'X'"


def test_ai_code_and_index_are_there_only_when_given() -> None:
    """`ai_code` and `index` are additions to the envelope, not parts of it."""
    limit = fault.payload_too_large("t", ai_code=fault.AI_LIMIT)
    assert json.loads(limit.body())["ai_code"] == 40009
    assert json.loads(limit.at(3).body()) == json.loads(limit.body()) | {"index": 3}


def test_who_shall_retry_is_told_when() -> None:
    """429 and 503 carry `Retry-After`."""
    assert fault.rate_limited(7).response().headers == ((b"retry-after", b"7"),)
    assert fault.backpressure().response().headers == ((b"retry-after", b"1"),)
    assert fault.backpressure().at(0).headers == ((b"retry-after", b"1"),)


def test_equal_faults_are_equal() -> None:
    """A fault is a value: tests and dedupe may compare it."""
    assert fault.invalid_input("t") == fault.invalid_input("t")
    assert fault.invalid_input("t") != fault.auth_failed("t")
    assert repr(fault.invalid_input("t")) == "Fault(400, 'invalid_input', 't')"
