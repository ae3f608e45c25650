"""Refusals of the HTTP API, in the one envelope all of them share (channels 8.2).

A `Fault` is both an exception, for code that checks, and a value, for code that responds. Its
constructors are named for the classes of the contract's table, so that status and code of a class
are written down once.
"""

import msgspec

from tidelog.base.serving.surface import HttpResponse
from tidelog.channels.settings import set_by

AI_LIMIT = 40009
"""`ai_code` of a limit on streamed content."""

AI_TRANSPORT_HEADER = 104000
AI_HEADER_SIZE = 104001
AI_SPOOFED_CLIENT = 104002
AI_NOT_PERMITTED = 104003
AI_ROLLUP_WINDOW = 104004
"""`ai_code`s of runs."""

RETRY_SOON = ((b"retry-after", b"1"),)

_encode = msgspec.json.Encoder().encode


class Fault(Exception):  # noqa: N818 - the failure is the noun
    """One refusal: what a client is told, and nothing of what the server knows besides."""

    def __init__(
        self,
        status: int,
        code: str,
        error: str,
        *,
        ai_code: int | None = None,
        index: int | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(error)
        self.status = status
        self.code = code
        """Stable name of the class of failure; SDKs switch on it."""
        self.error = error
        """For people; where the contract gives a sentence, exactly that sentence."""
        self.ai_code = ai_code
        self.index = index
        """Index of the refused item in a batch."""
        self.headers = headers

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fault) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # compared in tests, never collected

    def __repr__(self) -> str:
        return f"Fault({self.status}, {self.code!r}, {self.error!r})"

    def at(self, index: int) -> "Fault":
        """The same refusal, of one item of a batch."""
        return Fault(
            self.status,
            self.code,
            self.error,
            ai_code=self.ai_code,
            index=index,
            headers=self.headers,
        )

    def body(self) -> bytes:
        """The envelope as JSON."""
        envelope: dict[str, object] = {
            "error": self.error,
            "code": self.code,
            "status": self.status,
        }
        if self.ai_code is not None:
            envelope["ai_code"] = self.ai_code
        if self.index is not None:
            envelope["index"] = self.index
        return _encode(envelope)

    def response(self) -> HttpResponse:
        """The HTTP response."""
        return HttpResponse(self.status, self.body(), headers=self.headers)


def feature_disabled(channel: str, setting: str) -> Fault:
    """Versioned messages are off, in general or for this channel, by that setting."""
    text = f"Versioned messages are disabled for channel '{channel}'"
    return not_offered(text + set_by(setting))


def history_disabled(channel: str, setting: str) -> Fault:
    """The channel keeps no history, by that setting."""
    text = f"Durable history is disabled by policy for channel '{channel}'"
    return not_offered(text + set_by(setting))


def not_offered(error: str) -> Fault:
    """Any other feature this server does not offer."""
    return Fault(422, "feature_disabled", error)


def not_found(message_serial: str, channel: str) -> Fault:
    """No such message."""
    error = f"Message '{message_serial}' was not found in channel '{channel}'"
    return Fault(404, "not_found", error)


def app_not_found(key: str) -> Fault:
    """No app has this key."""
    return Fault(404, "app_not_found", f"App with key '{key}' was not found")


def invalid_input(error: str) -> Fault:
    """Malformed or contradicting input."""
    return Fault(400, "invalid_input", error)


def invalid_transport_header(error: str) -> Fault:
    """Metadata of a run that the contract does not know."""
    return Fault(400, "ai_invalid_transport_header", error, ai_code=AI_TRANSPORT_HEADER)


def header_too_large(error: str) -> Fault:
    """Metadata of a run beyond its limits."""
    return Fault(400, "ai_header_too_large", error, ai_code=AI_HEADER_SIZE)


def client_id_spoof(error: str) -> Fault:
    """A socket that says it is another client."""
    return Fault(403, "ai_client_id_spoof", error, ai_code=AI_SPOOFED_CLIENT)


def event_not_permitted(error: str) -> Fault:
    """A socket that may not publish an event of runs."""
    return Fault(403, "ai_event_not_permitted", error, ai_code=AI_NOT_PERMITTED)


def rollup_window_invalid(error: str) -> Fault:
    """A wish for rolled-up appends that cannot be granted."""
    return Fault(400, "ai_rollup_window_invalid", error, ai_code=AI_ROLLUP_WINDOW)


def payload_conflict() -> Fault:
    """An `op_id`, `message_id` or idempotency key comes back with something else (channels D9)."""
    return invalid_input("idempotency key was already used with a different payload")


def missing_channel_info() -> Fault:
    """A publish that names no channel."""
    return Fault(400, "missing_channel_info", "Missing required channel or channels")


def limit_exceeded(error: str) -> Fault:
    """A count or length beyond its limit on a publish."""
    return Fault(400, "limit_exceeded", error)


def payload_too_large(error: str, ai_code: int | None = None) -> Fault:
    """Content beyond its limit; the limits of streamed content give `ai_code=AI_LIMIT`."""
    return Fault(413, "payload_too_large", error, ai_code=ai_code)


def auth_failed(error: str) -> Fault:
    """A signature, an actor or a capability that does not suffice."""
    return Fault(401, "auth_failed", error)


def rate_limited(retry_after_seconds: int) -> Fault:
    """Too many requests of one app."""
    headers = ((b"retry-after", b"%d" % retry_after_seconds),)
    text = "Too many requests" + set_by("apps.max_api_requests_per_minute")
    return Fault(429, "rate_limited", text, headers=headers)


def backpressure(error: str = "The server is busy; retry later") -> Fault:
    """The same request would be taken a moment later."""
    return Fault(503, "backpressure", error, headers=RETRY_SOON)
