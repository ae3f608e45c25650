"""What the broker returns: a status and a JSON object, the same over HTTP and in `ack` frames."""

from datetime import UTC, datetime
from math import ceil
from typing import Any

from msgspec import Struct, field

from tidelog.mesh.protocol.fingerprint import RequestRefused, prefix

RETRY_SOON_SECONDS = 1
"""When a caller should come again whom a full queue or a silent store has sent away."""


class Reply(Struct, frozen=True, array_like=True):
    """A status, and what the caller is told."""

    status: int
    body: dict[str, Any] = field(default_factory=dict)
    retry_after_s: int | None = None
    """The header `Retry-After`; in a frame `retry_after`."""

    @property
    def error(self) -> str | None:
        """The code of a refusal."""
        code: str | None = self.body.get("error")
        return code


class Refused(Exception):  # noqa: N818 - the failure is the noun
    """A refusal on its way to the caller."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.error)
        self.reply = reply


def rfc3339(unix_ms: int) -> str:
    """A time as it is on the wire."""
    moment = datetime.fromtimestamp(unix_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def refusal(status: int, code: str, detail: str = "", retry_after_s: int | None = None) -> Reply:
    """Nothing was done; `detail` is for people."""
    body = {"error": code}
    if detail:
        body["detail"] = detail
    return Reply(status, body, retry_after_s)


def of_request(error: RequestRefused) -> Reply:
    """A request that is wrong in itself."""
    return refusal(error.status, error.code, str(error))


def unauthenticated(detail: str = "") -> Reply:
    """The caller has not proved who it is."""
    return refusal(401, "unauthenticated", detail)


def mesh_not_found() -> Reply:
    """There is no such mesh."""
    return refusal(404, "mesh_not_found")


def not_a_member() -> Reply:
    """The caller is not a member, or no longer one."""
    return refusal(403, "not_a_member")


def rate_limited(milliseconds: int) -> Reply:
    """The window is full; a new one begins after so long."""
    return refusal(429, "rate_limited", retry_after_s=max(1, ceil(milliseconds / 1000)))


def internal() -> Reply:
    """Something failed and nothing was kept; the text never says what."""
    return refusal(500, "internal")


def unavailable() -> Reply:
    """The store does not answer, or too much waits; nothing is known to be kept."""
    return refusal(503, "unavailable", retry_after_s=RETRY_SOON_SECONDS)


def accepted(client_message_id: str, broker_message_id: str, history_id: int) -> Reply:
    """A first accept."""
    return Reply(
        201,
        {
            "broker_message_id": broker_message_id,
            "client_message_id": client_message_id,
            "history_id": history_id,
            "duplicate": False,
        },
    )


def conflict(client_message_id: str, kind: str, fingerprint: bytes) -> Reply:
    """The id stands for something else; `fingerprint` is that of the received request."""
    return Reply(
        409,
        {
            "error": "idempotency_key_reused",
            "client_message_id": client_message_id,
            "conflict": kind,
            "broker_fingerprint_prefix": prefix(fingerprint),
        },
    )
