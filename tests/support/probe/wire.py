"""What the probe says on the wire: typed messages and nothing else."""

from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct, json

MAX_MESSAGE_BYTES = 1024 * 1024
MAX_NAME_BYTES = 200
MAX_SERIAL = 2**63 - 1

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_BYTES)]


class Put(Struct, tag="put", tag_field="op", forbid_unknown_fields=True):
    """Append `value` to a stream, once per key."""

    stream: Name
    key: Name
    value: Raw
    """Any JSON, kept as received."""
    weight: int = 1
    """Added to the stream's sum, which must not become negative."""


class Subscribe(Struct, tag="subscribe", tag_field="op", forbid_unknown_fields=True):
    """Send every entry of a stream after `after`: stored ones, then live ones."""

    stream: Name
    after: Annotated[int, Meta(ge=0, le=MAX_SERIAL)] = 0


class Prune(Struct, forbid_unknown_fields=True):
    """Empty the content of a stream's entries up to and including serial `through`."""

    through: Annotated[int, Meta(ge=1, le=MAX_SERIAL)]


ClientMessage = Put | Subscribe


class PutResult(Struct, tag="result", tag_field="op", omit_defaults=True):
    """What became of a put."""

    key: str
    status: Literal["committed", "duplicate", "conflict", "refused", "failed"]
    committed_id: int = 0
    stream_serial: int = 0
    committed_at: int = 0
    available: bool = True
    """False in a duplicate whose content was pruned."""
    reason: str = ""


class PruneResult(Struct, tag="pruned", tag_field="op"):
    """What a prune emptied."""

    pruned: int
    reason: str = ""


class Subscribed(Struct, tag="subscribed", tag_field="op"):
    """Everything up to `position` follows from the store, the rest live."""

    stream: str
    position: int


class EntryMessage(Struct, tag="entry", tag_field="op"):
    """One entry of a subscribed stream; `value` is null once pruned."""

    committed_id: int
    stream: str
    stream_serial: int
    key: str
    value: Raw
    committed_at: int


class StreamState(Struct):
    """A stream's state, kept beside the log and committed with it (L6)."""

    stream: str
    puts: int
    weight: int
    last_committed_id: int


class Error(Struct, tag="error", tag_field="op"):
    """A request that was not understood, or that the server cannot take now."""

    code: str
    message: str


class Body(Struct):
    """Body of a `put` entry in the log."""

    value: Raw
    weight: int


encode = json.Encoder().encode
decode_message = json.Decoder(ClientMessage).decode
decode_put = json.Decoder(Put).decode
decode_prune = json.Decoder(Prune).decode
decode_result = json.Decoder(PutResult).decode
decode_body = json.Decoder(Body).decode
