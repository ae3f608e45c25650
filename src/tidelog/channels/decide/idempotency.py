"""Receipts: that a key was used, where such keys live, and how two requests are told apart."""

from hashlib import sha256

from tidelog.log.decision import Accept, View
from tidelog.store.rows import DedupeRow


def receipt_scope(stream: str) -> str:
    """Where a channel's publish receipts are: `message_id` and keys that stand for one."""
    return stream


def event_scope(app_id: str) -> str:
    """Where the answers to publishes under an idempotency key are. No channel is named `/`."""
    return f"channels/{app_id}//events"


def batch_scope(app_id: str) -> str:
    """The same for whole batches: a key-space of its own (channels 4.3)."""
    return f"channels/{app_id}//batches"


def batch_item_scope(app_id: str, index: int) -> str:
    """Where the answers to single items of batches are, under the key of the whole."""
    return f"{batch_scope(app_id)}/{index}"


def fingerprint(*parts: bytes | str | None) -> bytes:
    """Over values of known number and order; no two different lists of parts look the same."""
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
    """Add a receipt, instead of one that has expired."""
    if view.dedupe(*key) is not None:
        accept.forget = (*accept.forget, key)
    now = view.now_ms
    expires_at = None if ttl_ms is None else now + ttl_ms
    row = DedupeRow(*key, committed_id, proof, "", outcome, 1, now, expires_at)
    accept.dedupe = (*accept.dedupe, row)
