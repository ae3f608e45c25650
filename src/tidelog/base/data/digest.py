"""The digest chain: what makes any change to a stored entry visible.

`body_digest` covers the content, `digest` covers the position and everything else together with the
digest before it. Pruning empties the content and keeps both, so the chain still verifies.

This module is pure and imports nothing of ours: the pipeline verifies the chain with it too.
"""

from hashlib import blake2b

SIZE_BYTES = 16
"""128 bits: no two entries share a digest by chance, at 32 bytes per entry for both digests."""


def body_digest(body: bytes, data: bytes | None) -> bytes:
    """Digest of an entry's content; the length of `body` keeps the two parts apart."""
    mark = b"%d:" % len(body) if data is None else b"%d+" % len(body)
    return blake2b(mark + body + (data or b""), digest_size=SIZE_BYTES).digest()


def entry_digest(
    previous: bytes,
    committed_id: int,
    stream: str,
    stream_serial: int,
    surface: str,
    kind: str,
    entity: str,
    ref: str,
    actor: str,
    committed_at: int,
    content: bytes,
) -> bytes:
    """Digest of an entry's position; `content` is its `body_digest`.

    The lengths come first, so no two different entries give the same bytes, whatever characters
    their texts hold.
    """
    text = (
        f"{committed_id} {stream_serial} {committed_at} {len(stream)} {len(surface)} {len(kind)} "
        f"{len(entity)} {len(ref)} {len(actor)} {stream}{surface}{kind}{entity}{ref}{actor}"
    )
    return blake2b(previous + content + text.encode(), digest_size=SIZE_BYTES).digest()
