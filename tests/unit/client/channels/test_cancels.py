"""Which cancels end a run: every form, before and after its start."""

from typing import Any

import pytest

from tidelog.channels.protocol.runs import Cancel
from tidelog.client.channels.cancels import HeardCancel, RunFacts, means, read_heard
from tidelog.client.channels.message import Message

RUN = RunFacts("r", "ana", 10)
NOBODYS = RunFacts("r", None, 10)


@pytest.mark.parametrize(
    ("cancel", "sender", "before", "after"),
    [
        (Cancel(run_id="r"), "ana", True, True),
        (Cancel(run_id="r"), "bob", False, True),  # after the start the server let it pass
        (Cancel(run_id="r"), None, True, True),
        (Cancel(run_id="q"), "ana", False, False),
        (Cancel(is_own=True), "ana", False, True),
        (Cancel(is_own=True), "bob", False, False),
        (Cancel(is_own=True), None, False, False),
        (Cancel(client_id="ana"), "bob", False, True),
        (Cancel(client_id="bob"), "bob", False, False),
        (Cancel(is_all=True), "bob", False, True),
        (Cancel(is_all=True), None, False, True),
    ],
)
def test_a_cancel_of_a_run(cancel: Cancel, sender: str | None, before: bool, after: bool) -> None:
    """By its form, who sent it, and where it stands."""
    assert means(HeardCancel(cancel, sender, 9), RUN) is before
    assert means(HeardCancel(cancel, sender, 11), RUN) is after


def test_a_run_of_nobody() -> None:
    """It is not the run of whoever says nothing either."""
    assert not means(HeardCancel(Cancel(run_id="r"), "ana", 9), NOBODYS)
    assert means(HeardCancel(Cancel(run_id="r"), None, 9), NOBODYS)
    assert not means(HeardCancel(Cancel(is_own=True), None, 11), NOBODYS)
    assert means(HeardCancel(Cancel(is_all=True), "admin", 11), NOBODYS)


def message(name: str, data: Any, extras: dict[str, Any] | None = None) -> Message:
    """A message at serial 3."""
    return Message(
        channel="room",
        serial="s",
        name=name,
        data=data,
        extras=extras or {},
        tags=None,
        action="create",
        history_serial=2,
        delivery_serial=3,
        version_serial=None,
        version_timestamp_ms=None,
        client_id=None,
    )


def test_what_is_a_cancel() -> None:
    """An `ai-cancel` of one of the forms; nothing else, whatever it says."""
    sent = {"ai": {"transport": {"input-client-id": "ana"}}}
    found = read_heard(message("ai-cancel", '{"runId":"r"}', sent))
    assert found == HeardCancel(Cancel(run_id="r"), "ana", 3)
    assert read_heard(message("ai-cancel", '{"own":true}')) == HeardCancel(
        Cancel(is_own=True), None, 3
    )
    for other in (
        message("ai-input", '{"runId":"r"}'),
        message("ai-cancel", "stop"),
        message("ai-cancel", {"runId": "r"}),
        message("ai-cancel", None),
    ):
        assert read_heard(other) is None


@pytest.mark.parametrize(
    "ai", ["x", 5, ["x"], {"transport": "x"}, {"transport": ["x"]}, {"transport": {"x": 1}}]
)
def test_extras_of_any_form(ai: Any) -> None:
    """On a channel where the server does not look at them, no event ends the hearing of others."""
    found = read_heard(message("ai-cancel", '{"runId":"r"}', {"ai": ai}))
    assert found == HeardCancel(Cancel(run_id="r"), None, 3)
    odd = {"ai": {"transport": {"input-client-id": ["ana"]}}}
    assert read_heard(message("ai-cancel", '{"runId":"r"}', odd)) == found
