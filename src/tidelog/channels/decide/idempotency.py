"""Idempotency: which keys were used, where they are kept, and how two requests are compared.

A receipt is the row of the dedupe table that says so.
"""

from hashlib import sha256

from tidelog.log.decision import Accept, View
from tidelog.store.rows import DedupeRow


def receipt_scope(stream: str) -> str:
    """Scope of a channel's publish receipts: `message_id`, and keys used instead of one."""
    return stream


def run_scope(stream: str) -> str:
    """Scope of the runs that began in a channel: by their id, whose each is."""
    return f"{stream}//runs"


def event_scope(app_id: str) -> str:
    """Scope of the responses to publishes under an idempotency key. No channel is named `/`."""
    return f"channels/{app_id}//events"


def batch_scope(app_id: str) -> str:
    """The same for whole batches: a key-space of its own (channels 4.3)."""
    return f"channels/{app_id}//batches"


def batch_item_scope(app_id: str, index: int) -> str:
    """Scope of the responses to single items of batches, under the key of the whole batch."""
    return f"{batch_scope(app_id)}/{index}"


def fingerprint(*parts: bytes | str | None) -> bytes:
    """A digest of values in a fixed order; two different lists never have the same input."""
    digest = sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"-" if data is None else b"%d:" % len(data))
        digest.update(data or b"")
    return digest.digest()


def unexpired(row: DedupeRow | None, now_ms: int) -> DedupeRow | None:
    """A receipt that still counts."""
    if row is None or (row.expires_at is not None and row.expires_at <= now_ms):
        return None
    return row


def remember(
    view: View,
    accept: Accept,
    key: tuple[str, str],
    outcome: bytes,
    ttl_ms: int | None,
    *,
    committed_id: int | None = None,
    proof: bytes = b"",
) -> None:
    """Add a receipt; it replaces one that has expired."""
    if view.dedupe(*key) is not None:
        accept.forget = (*accept.forget, key)
    now = view.now_ms
    expires_at = None if ttl_ms is None else now + ttl_ms
    row = DedupeRow(*key, committed_id, proof, "", outcome, 1, now, expires_at)
    accept.dedupe = (*accept.dedupe, row)
