"""The rules of the outbox as tables and formulas: states, replies, delays, age (mesh 3.3, 4).

Nothing here reads a clock or a file; the daemon passes what it knows and stores what comes back.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from tidelog.base.errors import TidelogError
from tidelog.mesh.protocol.fingerprint import prefix

Status = Literal["pending", "inflight", "done", "dead", "aborted"]
Mode = Literal["retention_scoped", "permanent"]

STATUSES: Final = ("pending", "inflight", "done", "dead", "aborted")

MIN_BACKOFF_MS = 500
MAX_BACKOFF_MS = 30_000
JITTER: Final = (0.8, 1.2)
"""A delay is multiplied by a factor drawn uniformly from this range."""

CLAIM_ROWS = 32
"""Attempts a worker starts at once."""

REQUEST_TIMEOUT_MS = 15_000
"""An attempt without a reply for so long has failed; a later reply to it changes nothing."""

MAX_AGE_DEFAULT_HOURS = 168
MAX_AGE_CAP_HOURS = 720
MIN_RETENTION_DAYS = 7
_MARGIN_HOURS = 24
"""How far the last attempt must stay inside the broker's dedupe window."""

MAX_AGE_EXCEEDED = "max_age_exceeded"
"""`last_error` of a row that died of age."""

TRANSITIONS: Final[frozenset[tuple[Status, Status]]] = frozenset(
    {
        ("pending", "inflight"),
        ("pending", "dead"),
        ("pending", "aborted"),
        ("inflight", "done"),
        ("inflight", "pending"),
        ("inflight", "dead"),
        ("dead", "aborted"),
    }
)
"""Every change of status there is; `done` and `aborted` are final (mesh 4.1). Only a row that is
possibly lost is not: it can be retired."""


# What an accept returns (mesh 3.3).


class Existing(Struct, frozen=True):
    """The row that already has the id of a send."""

    request_fingerprint: bytes
    status: Status
    broker_message_id: str | None
    history_id: int | None
    last_error: str | None
    asked_to: str | None = None
    """The destination as its caller wrote it."""
    destination_ref: str | None = None
    """What that was taken for."""
    lost_in: str | None = None
    """The broker's history that perhaps has not got it any more."""


class AcceptReply(Struct, frozen=True):
    """The reply to an accept."""

    status: int
    body: Mapping[str, Any]
    inserts: bool = False
    """Whether a `pending` row must be committed before this reply is given."""


def look_up(client_message_id: str, fingerprint: bytes, existing: Existing | None) -> AcceptReply:
    """State times match; every combination has its one reply."""
    if existing is None:
        return AcceptReply(202, {"client_message_id": client_message_id, "status": "queued"}, True)
    match = existing.request_fingerprint == fingerprint
    if match and existing.status in ("pending", "inflight"):
        shown = "queued" if existing.status == "pending" else "inflight"
        return AcceptReply(202, {"client_message_id": client_message_id, "status": shown})
    if match and existing.status == "done":
        body: dict[str, Any] = {
            "client_message_id": client_message_id,
            "status": "done",
            "duplicate": True,
            "broker_message_id": existing.broker_message_id,
            "history_id": existing.history_id,
        }
        if existing.lost_in is not None:
            body["possibly_lost"] = True
        return AcceptReply(200, body)
    conflict = f"outbox_{existing.status}_fingerprint_{'match' if match else 'mismatch'}"
    refusal: dict[str, Any] = {
        "error": "idempotency_key_reused",
        "conflict": conflict,
        "client_message_id": client_message_id,
        "daemon_fingerprint_prefix": prefix(fingerprint),
        "stored_fingerprint_prefix": prefix(existing.request_fingerprint),
    }
    if existing.status == "done":
        refusal["broker_message_id"] = existing.broker_message_id
    if match and existing.status == "dead":
        refusal["reason"] = existing.last_error
    return AcceptReply(409, refusal)


# What a broker's response means (mesh 4.2).

_TRANSIENT = frozenset({401, 408, 425, 429})


def status_after(code: int | None) -> Status:
    """The status of an attempted row; None stands for a timeout, a reset or no connection.

    A reply that no broker of this contract gives is retried: age ends it, and nothing is lost.
    """
    if code in (200, 201):
        return "done"
    if code is None or code in _TRANSIENT or not 400 <= code < 500:
        return "pending"
    return "dead"


_GATE = ("403 not_a_member", "404 mesh_not_found")
"""Refusals that the broker gives before it has looked for the id."""


def proves_absence(last_error: str | None, attempts: int) -> bool:
    """Whether a row's error says that the broker does not have the message.

    A refusal for good does: the same bytes were never accepted under this id. One at the gate does
    only for a first attempt: an earlier one may have been accepted and its reply lost.
    """
    code = (last_error or "").partition(" ")[0]
    if not code.isdecimal() or status_after(int(code)) != "dead":
        return False
    return attempts == 1 or last_error not in _GATE


def backoff_ms(attempts: int, least: int = MIN_BACKOFF_MS, most: int = MAX_BACKOFF_MS) -> int:
    """Delay after so many attempts, before jitter: it doubles from `least` up to `most`."""
    return min(most, least << min(max(attempts, 1) - 1, 16))


def retry_delay_ms(attempts: int, jitter: float, retry_after_s: float | None = None) -> int:
    """Delay until the next attempt; `Retry-After` raises it, never lowers it."""
    delay = round(backoff_ms(attempts) * jitter)
    return delay if retry_after_s is None else max(delay, round(retry_after_s * 1000))


# How old a row may get (mesh 4.3).


class MaxAgeRefused(TidelogError):  # noqa: N818 - the failure is the noun
    """The configured age cannot be used with what was negotiated; the daemon must not start."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


def safety_margin_hours(retention_days: int) -> int:
    """A tenth of the window, rounded up, at least a day."""
    return max(_MARGIN_HOURS, -(-retention_days * 24 // 10))


def override_ceiling_hours(mode: Mode, retention_days: int | None) -> int:
    """The highest age an operator may set."""
    if mode == "permanent" or retention_days is None:
        return MAX_AGE_CAP_HOURS
    return retention_days * 24 - _MARGIN_HOURS


def max_age_hours(
    mode: Mode,
    retention_days: int | None,
    *,
    override: int | None = None,
    default: int = MAX_AGE_DEFAULT_HOURS,
) -> int:
    """Hours after which a row is dead; `retention_days` is None in permanent mode."""
    if override is not None:
        ceiling = override_ceiling_hours(mode, retention_days)
        if override < 1:
            raise MaxAgeRefused("outbox_max_age_invalid", "the override is below 1 hour")
        if override > ceiling:
            above = "cap" if mode == "permanent" else "dedupe_window"
            raise MaxAgeRefused(
                f"outbox_max_age_above_{above}", f"the override may be at most {ceiling} hours"
            )
        return override
    if mode == "permanent" or retention_days is None:
        return min(default, MAX_AGE_CAP_HOURS)
    return retention_days * 24 - safety_margin_hours(retention_days)


# What may be requeued or dropped (mesh 4.4).


def retire_error(status: Status, *, is_lost: bool = False) -> str | None:
    """The error of a requeue or drop of a row with this status; None when it may be retired.

    One that is `done` may be if the broker perhaps has lost it.
    """
    if (status, "aborted") in TRANSITIONS or (status == "done" and is_lost):
        return None
    return f"outbox_row_{status}"
