"""How a connection's messages are worded: the protocol's own form, and who else has one."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Raw

from tidelog.sync.protocol.actions import Submit, Sync
from tidelog.sync.protocol.problem import Problem
from tidelog.sync.protocol.wire import (
    Page,
    Result,
    delivered,
    encode,
    envelope,
    error_payload,
    raw_events,
    result_payload,
)


class WireForm(Protocol):
    """The words of one dialect; what they mean is the same in each."""

    def raw_drafts(self, frame: bytes, most: int) -> list[Raw]:
        """What a submit holds of each draft as it was sent; nothing for other messages.

        `most`: how many one request may have.
        """

    def envelope(self, kind: str, msg_id: str, timestamp: int, payload: bytes) -> bytes:
        """A message around an encoded payload."""

    def refusal(self, problem: Problem) -> Problem:
        """A refusal as this dialect has it."""

    def error(self, problem: Problem) -> bytes:
        """Payload of `error`."""

    def results(self, request: Submit, results: Sequence[Result], now_ms: int) -> bytes:
        """Payload of `submit_events_result`."""

    def delivered(self, body: bytes, committed_id: int, committed_at: int) -> bytes:
        """Payload of `event_broadcast`, and element of `sync_response.events`."""

    def page(self, request: Sync, page: Page) -> bytes:
        """Payload of `sync_response`."""

    def beyond_the_log(self, request: Sync) -> Problem | None:
        """What to tell a client whose cursor is after the end of the log, beside an empty page."""


class NativeForm:
    """The protocol's own form."""

    def raw_drafts(self, frame: bytes, most: int) -> list[Raw]:
        """All of them: a request with too many is refused as a whole."""
        del most
        return raw_events(frame)

    def envelope(self, kind: str, msg_id: str, timestamp: int, payload: bytes) -> bytes:
        """See `WireForm.envelope`."""
        return envelope(kind, msg_id, timestamp, payload)

    def refusal(self, problem: Problem) -> Problem:
        """As it is."""
        return problem

    def error(self, problem: Problem) -> bytes:
        """See `WireForm.error`."""
        return error_payload(problem.code, str(problem), problem.details)

    def results(self, request: Submit, results: Sequence[Result], now_ms: int) -> bytes:
        """See `WireForm.results`."""
        del request, now_ms
        return result_payload(results)

    def delivered(self, body: bytes, committed_id: int, committed_at: int) -> bytes:
        """See `WireForm.delivered`."""
        return delivered(body, committed_id, committed_at)

    def page(self, request: Sync, page: Page) -> bytes:
        """See `WireForm.page`."""
        more = dict(page.more)
        if page.model_version is not None:
            more["model_version"] = page.model_version
        return b'{"partitions":%s,"effective_subscriptions":%s,"events":[%s],%s' % (
            encode(request.partitions),
            encode(page.subscriptions),
            b",".join(page.events),
            encode(
                {
                    "next_since_committed_id": page.next_since,
                    "sync_to_committed_id": page.watermark,
                    "has_more": page.has_more,
                    **more,
                }
            )[1:],
        )

    def beyond_the_log(self, request: Sync) -> Problem | None:
        """Nothing: the page says where the log ends, and the client knows its incarnation."""
        del request
        return None


NATIVE = NativeForm()
