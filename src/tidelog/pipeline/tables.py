"""The tables of the lake: what each column means, what a row is, and what it is made of.

Everything that knows a table takes it from here: the Spark schema, the schema check, the order in
which tables are built, and the reference in `docs/pipeline.md`. Nothing here imports Spark, so a
notebook can ask what a column means without starting a JVM.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple

from tidelog.channels.protocol.verbs import VERBS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

Layer = Literal["bronze", "silver", "gold", "product"]
_MESSAGE_CONTENT = (
    *("name", "data", "data_bytes", "extras", "tags", "creator", "client_id"),
    *("description", "metadata"),
)

ColumnKind = Literal[
    "bigint", "string", "binary", "boolean", "timestamp", "double", "array<string>"
]


class Column(NamedTuple):
    """One column; `kind` is its type as Spark SQL writes it."""

    name: str
    kind: ColumnKind
    meaning: str
    is_nullable: bool = False


class Table(NamedTuple):
    """One table of the lake."""

    name: str
    layer: Layer
    meaning: str
    """What a row is."""
    key: tuple[str, ...]
    """Columns that name a row: no two rows share them."""
    columns: tuple[Column, ...]
    inputs: tuple[str, ...] = ()
    """Tables it is built from."""
    relations: tuple[str, ...] = ()
    """Relations of the store it is built from: they change after the commit, so the log does not
    tell them and they are read as of one moment."""
    order: str = "committed_id"
    """Column along which its rows lie: a file has a range of it, as far as that can be, so that
    what is new or has changed concerns few files."""
    is_changing: bool = False
    """Whether rows that are there change. Its files are then small, so that little is written again
    for one of them."""
    made_by: str = ""
    """`module:function` of `tidelog.pipeline.transforms`, for a table that is made anew of its one
    input whenever that has changed. It is built and checked by this alone; every other table has a
    builder in `fill.derived_tables` and a comparison in `checks.made_tables`."""
    sorted_by: tuple[str, ...] = ()
    """Columns by which the rows of a file are sorted, if whoever reads it looks for some of them:
    the other row groups of the file are skipped then."""
    content: tuple[str, ...] = ()
    """Columns that are made of the content of entries: null once that is forgotten or too old."""
    content_flag: str = ""
    """Column that says whether the content is here; false then."""

    @property
    def make(self) -> "Callable[[DataFrame], DataFrame]":
        """The function that makes all rows of the rows of the one input."""
        module, _, function = self.made_by.partition(":")
        found: Callable[[DataFrame], DataFrame] = getattr(
            import_module(f"tidelog.pipeline.transforms.{module}"), function
        )
        return found

    @property
    def ddl(self) -> str:
        """The schema in the words of Spark SQL."""
        return ", ".join(
            f"{c.name} {c.kind}" + ("" if c.is_nullable else " NOT NULL") for c in self.columns
        )


def _committed_id() -> Column:
    return Column("committed_id", "bigint", "Position in the log, gapless from 1.")


LOG = Table(
    "log",
    "bronze",
    "An entry of the log, exactly as committed. What is pruned in the store afterwards stays here "
    "until it is forgotten.",
    ("committed_id",),
    (
        _committed_id(),
        Column(
            "stream",
            "string",
            "Stream it belongs to: `channels/{app}/{channel}`, `sync`, `mesh/{id}`.",
        ),
        Column("stream_serial", "bigint", "Position in its stream, gapless from 1."),
        Column("surface", "string", "`channels`, `sync` or `mesh`."),
        Column("kind", "string", "What happened: `message.append`, `set`, `send.topic` ..."),
        Column(
            "entity", "string", "What it happened to: message serial, event id, broker message id."
        ),
        Column("ref", "string", "Destination of a send; else empty."),
        Column("actor", "string", "Authenticated client, member or app."),
        Column(
            "committed_at",
            "bigint",
            "Clock of the server, milliseconds since 1970; never decreases.",
        ),
        Column(
            "body",
            "binary",
            "JSON of what happened; null if it was pruned before it was ingested, is forgotten or "
            "too old.",
            True,
        ),
        Column("data", "binary", "Raw bytes of a mesh message; else null.", True),
        Column("body_digest", "binary", "BLAKE2b-128 of `body` and `data` as they were committed."),
        Column(
            "digest",
            "binary",
            "BLAKE2b-128 of the digest before and of every column but body and data.",
        ),
    ),
    content=("body", "data"),
)

FORGOTTEN = Table(
    "forgotten",
    "bronze",
    "Something whose content was forgotten: no table has it, and nothing brings it back.",
    ("stream", "entity"),
    (
        Column("stream", "string", "Stream it belongs to."),
        Column("entity", "string", "Message serial, event id or broker message id."),
        Column(
            "first_committed_id",
            "bigint",
            "Content from this position on is forgotten, including what is added later.",
        ),
        Column(
            "partitions",
            "array<string>",
            "Partitions of a sync event; they have no snapshot any more.",
            True,
        ),
        Column("forgotten_at", "timestamp", "When."),
    ),
    order="first_committed_id",
)

MESSAGE_VERSION = Table(
    "message_version",
    "silver",
    "A version of a channel message, or an event of a channel whose messages cannot change.",
    ("committed_id",),
    (
        _committed_id(),
        Column("app_id", "string", "App of the channel."),
        Column("channel", "string", "Name of the channel."),
        Column("message_serial", "string", "Message it is a version of."),
        Column("delivery_serial", "bigint", "Position in the channel."),
        Column(
            "history_serial",
            "bigint",
            "Position of the message in the channel's history; null if pruned.",
            True,
        ),
        Column("action", "string", f"{', '.join(f'`{verb}`' for verb in VERBS)} or `event`."),
        Column("actor", "string", "Who did it."),
        Column("client_id", "string", "Whom this version is attributed to.", True),
        Column("creator", "string", "Client that created the message.", True),
        Column("message_id", "string", "Id of this version on the wire.", True),
        Column("name", "string", "Event name after this version.", True),
        Column(
            "data",
            "string",
            "JSON text: all of the data; of an append the fragment. Null: none, or what was there "
            "(then `kept` names it).",
            True,
        ),
        Column("data_bytes", "bigint", "Size of all the data after this version.", True),
        Column("extras", "string", "JSON text of the extras after this version.", True),
        Column("tags", "string", "JSON text of the tags.", True),
        Column(
            "description", "string", "Why the version was made, in the words of its author.", True
        ),
        Column("metadata", "string", "JSON text of the version's metadata.", True),
        Column("op_id", "string", "Key under which the operation is deduplicated.", True),
        Column("kept", "array<string>", "Fields an update or delete left as they were.", True),
        Column("cleared", "array<string>", "Fields an update or delete removed.", True),
        Column("committed_at", "timestamp", "When."),
        Column(
            "is_available",
            "boolean",
            "Whether the content is here; false if it was pruned, forgotten or too old.",
        ),
    ),
    inputs=("log",),
    sorted_by=("app_id", "channel", "committed_id"),
    content=(*_MESSAGE_CONTENT, "history_serial", "message_id", "op_id", "kept", "cleared"),
    content_flag="is_available",
)

MESSAGE = Table(
    "message",
    "silver",
    "A channel message as it is now: its newest version with all appends joined.",
    ("app_id", "channel", "message_serial"),
    (
        Column("app_id", "string", "App of the channel."),
        Column("channel", "string", "Name of the channel."),
        Column("message_serial", "string", "The message."),
        Column(
            "history_serial",
            "bigint",
            "Position in the channel's history; null if nothing of it is left.",
            True,
        ),
        Column(
            "state",
            "string",
            "`visible`, `deleted` (its last version is a delete) or `purged` from the server.",
        ),
        Column("action", "string", "Action of the newest version."),
        Column("name", "string", "Event name.", True),
        Column("data", "string", "JSON text of the whole data. Null: none.", True),
        Column("data_bytes", "bigint", "Size of the data.", True),
        Column("extras", "string", "JSON text of the extras.", True),
        Column("tags", "string", "JSON text of the tags.", True),
        Column("creator", "string", "Client that created it.", True),
        Column("client_id", "string", "Whom the newest version is attributed to.", True),
        Column("description", "string", "Of the newest version.", True),
        Column("metadata", "string", "JSON text, of the newest version.", True),
        Column("versions", "bigint", "Number of versions."),
        Column("appends", "bigint", "Number of appends among them."),
        Column("first_committed_id", "bigint", "Position of its first version."),
        Column("last_committed_id", "bigint", "Position of its newest version."),
        Column("delivery_serial", "bigint", "Position of the newest version in the channel."),
        Column("published_at", "timestamp", "When it was created."),
        Column("updated_at", "timestamp", "When it was last changed."),
        Column(
            "is_complete",
            "boolean",
            "Whether all the content it is made of is here; else `data` is null.",
        ),
    ),
    inputs=("message_version",),
    relations=("channel_message",),
    order="first_committed_id",
    is_changing=True,
    content=_MESSAGE_CONTENT,
    content_flag="is_complete",
)

EVENT = Table(
    "event",
    "silver",
    "A sync event in one of its partitions.",
    ("committed_id", "partition"),
    (
        _committed_id(),
        Column("partition", "string", "Partition; an event in three partitions is three rows."),
        Column("event_id", "string", "Id the client gave it."),
        Column("client_id", "string", "Client that submitted it."),
        Column("type", "string", "`set`, `unset`, `treePush` ... or the application's type."),
        Column("event", "string", "JSON text of the event; null if forgotten or too old.", True),
        Column("committed_at", "timestamp", "When."),
    ),
    inputs=("log",),
    content=("event",),
)

SEND = Table(
    "send",
    "silver",
    "A message accepted by the broker of a mesh.",
    ("broker_message_id",),
    (
        _committed_id(),
        Column("mesh_id", "string", "The mesh."),
        Column("history_id", "bigint", "Position in the mesh, gapless from 1."),
        Column("broker_message_id", "string", "Id the broker gave it."),
        Column("client_message_id", "string", "Id its sender gave it; null if pruned.", True),
        Column("destination_kind", "string", "`topic`, `dm` or `queue`."),
        Column("destination_ref", "string", "Topic, public key or queue."),
        Column("sender_member_id", "string", "Member that sent it."),
        Column("sender_name", "string", "Its name then.", True),
        Column("priority", "string", "`now`, `next` or `low`.", True),
        Column("reply_to_id", "string", "Message it answers.", True),
        Column(
            "supersedes",
            "string",
            "Client message id of the send that an operator requeued as this one.",
            True,
        ),
        Column("mentions", "array<string>", "Public keys it mentions.", True),
        Column("meta", "string", "JSON text of its meta.", True),
        Column("content", "binary", "Its bytes; null if there are none or they are gone.", True),
        Column("content_bytes", "bigint", "Their number; null if pruned.", True),
        Column("committed_at", "timestamp", "When it was accepted."),
        Column("deleted_at", "timestamp", "When retention removed it; else null.", True),
        Column("deleted_reason", "string", "Why.", True),
    ),
    inputs=("log",),
    relations=("tombstone",),
    is_changing=True,
    content=(
        *("client_message_id", "sender_name", "priority", "reply_to_id", "supersedes"),
        *("mentions", "meta", "content", "content_bytes"),
    ),
)

DELIVERY = Table(
    "delivery",
    "silver",
    "A message for one recipient or webhook, and whether it was delivered.",
    ("broker_message_id", "recipient_pubkey", "channel", "endpoint_id"),
    (
        Column("broker_message_id", "string", "The message."),
        Column(
            "recipient_pubkey",
            "string",
            "Recipient; `queue:{id}` for a queue, empty for a webhook.",
        ),
        Column("channel", "string", "`push` or `webhook`."),
        Column("endpoint_id", "string", "Webhook; else empty."),
        Column("mesh_id", "string", "The mesh."),
        Column("history_id", "bigint", "Position of the message in the mesh."),
        Column("status", "string", "`pending` until it is `delivered` or `dead`."),
        Column("attempts", "bigint", "How often it was tried; a try under way is not counted."),
        Column("last_error", "string", "Why the last try failed.", True),
        Column("created_at", "timestamp", "When the message was committed."),
        Column("delivered_at", "timestamp", "When it was acknowledged.", True),
    ),
    relations=("delivery",),
    order="broker_message_id",
    is_changing=True,
)

MENTION = Table(
    "mention",
    "silver",
    "A member mentioned in a message.",
    ("broker_message_id", "mentioned_pubkey"),
    (
        Column("broker_message_id", "string", "The message."),
        Column("mentioned_pubkey", "string", "Who is mentioned."),
        Column("mesh_id", "string", "The mesh."),
        Column("history_id", "bigint", "Position of the message in the mesh."),
        Column("created_at", "timestamp", "When."),
    ),
    relations=("mention",),
    order="broker_message_id",
    is_changing=True,
)

DEDUPE = Table(
    "dedupe",
    "silver",
    "A key under which a request is remembered, so that its repetition changes nothing.",
    ("scope", "key"),
    (
        Column("scope", "string", "Where the key counts."),
        Column("key", "string", "The key."),
        Column(
            "committed_id", "bigint", "Entry it stands for; null for a response without one.", True
        ),
        Column(
            "fingerprint",
            "binary",
            "What the request was: another one under the key is a conflict.",
        ),
        Column("owner", "string", "Who asked first."),
        Column("is_available", "boolean", "Whether the content is still there."),
        Column("first_seen_at", "timestamp", "When it was first asked."),
        Column("expires_at", "timestamp", "When it may be forgotten; null: never by time.", True),
    ),
    relations=("dedupe",),
    is_changing=True,
)

ACTION_COUNTS = {f"{verb}s": verb for verb in VERBS}
"""Columns of `activity` that count versions of messages, and the action of each."""

ACTIVITY = Table(
    "activity",
    "gold",
    "What happened in a stream in one minute.",
    ("stream", "minute"),
    (
        Column("stream", "string", "The stream."),
        Column("surface", "string", "Its surface."),
        Column("minute", "timestamp", "Start of the minute."),
        Column("writes", "bigint", "Entries committed."),
        Column("bytes", "bigint", "Bytes of their bodies and data, as far as they are here."),
        Column("actors", "bigint", "Number of different actors."),
        *(
            Column(name, "bigint", f"Versions of messages whose action is `{verb}`.")
            for name, verb in ACTION_COUNTS.items()
        ),
    ),
    inputs=("log",),
    order="minute",
    is_changing=True,
)

LATENCY = Table(
    "latency",
    "gold",
    "How long deliveries of a mesh took in one minute, from commit to acknowledgement.",
    ("mesh_id", "channel", "minute"),
    (
        Column("mesh_id", "string", "The mesh."),
        Column("channel", "string", "`push` or `webhook`."),
        Column("minute", "timestamp", "Start of the minute of the commits."),
        Column("deliveries", "bigint", "Deliveries acknowledged."),
        Column("p50_ms", "double", "Median, milliseconds."),
        Column("p95_ms", "double", "95th percentile."),
        Column("p99_ms", "double", "99th percentile."),
        Column("max_ms", "double", "Longest."),
    ),
    inputs=("delivery",),
    made_by="latency:latencies",
    order="minute",
    is_changing=True,
)

AUDIT = Table(
    "audit",
    "gold",
    "Who did what, and when. Nothing is ever changed here, and it can be rebuilt from `log`.",
    ("committed_id",),
    (
        _committed_id(),
        Column("at", "timestamp", "When."),
        Column("surface", "string", "`channels`, `sync` or `mesh`."),
        Column("stream", "string", "Where."),
        Column("actor", "string", "Who."),
        Column("action", "string", "What: the entry's kind."),
        Column("entity", "string", "To what."),
        Column("ref", "string", "For whom; else empty."),
        Column("supersedes", "string", "Client message id of the send this one replaced.", True),
        Column(
            "digest", "string", "The entry's digest in hexadecimal: what ties the row to the log."
        ),
    ),
    inputs=("log",),
)

CHANGES = Table(
    "changes",
    "gold",
    "What changed, on all surfaces, in the order of the log: for whoever follows it. `tidelog "
    "pipeline deliver` posts it.",
    ("committed_id",),
    (
        _committed_id(),
        Column("at", "timestamp", "When."),
        Column("surface", "string", "`channels`, `sync` or `mesh`."),
        Column("stream", "string", "Where."),
        Column("stream_serial", "bigint", "Position in its stream, gapless from 1."),
        Column("kind", "string", "What happened: `message.append`, `set`, `send.topic` ..."),
        Column("entity", "string", "To what: message serial, event id, broker message id."),
        Column("ref", "string", "Destination of a send; else empty."),
        Column("actor", "string", "Who did it."),
        Column(
            "change",
            "string",
            "JSON text of what is new: the fields of a version, an event with its partitions, a "
            "send without its bytes. Null if it is gone, forgotten or too old.",
            True,
        ),
        Column("content", "binary", "Bytes of a send; else null.", True),
        Column("digest", "string", "The entry's digest in hexadecimal."),
    ),
    inputs=("log",),
    content=("change", "content"),
)

SNAPSHOT = Table(
    "snapshot",
    "product",
    "The state of a sync partition, made by the reducer that the server and its clients use.",
    ("partition",),
    (
        Column("partition", "string", "The partition."),
        Column("committed_id", "bigint", "Position up to which events are in it."),
        Column("digest", "string", "Digest of the entry at that position, in hexadecimal."),
        Column("model_version", "bigint", "Model version it was made with."),
        Column("events", "bigint", "Events it was made of."),
        Column("state", "string", "JSON text of the state."),
    ),
    inputs=("event", "log"),
    relations=("sync_setting",),
    order="partition",
)

SNAPSHOT_BASE = Table(
    "snapshot_base",
    "product",
    "The state that a sync partition had after the last of its events that are too old for the "
    "lake to keep their content: what later ones continue.",
    ("partition",),
    SNAPSHOT.columns,
    order="partition",
)

VERDICT = Table(
    "verdict",
    "product",
    "What a check found when it last ran, and how far everything was sound then.",
    ("check",),
    (
        Column("check", "string", "Name of the check."),
        Column("ran_at", "timestamp", "When."),
        Column("through", "bigint", "Position of the log it looked at."),
        Column("examined", "bigint", "Rows it examined."),
        Column("findings", "bigint", "Violations it found, and comparisons it could not make."),
        Column("first", "array<string>", "The first of them, in words."),
        Column("ranges", "array<string>", "Entries it looked at, such as `1 to 500`."),
        Column("subjects", "array<string>", "Tables it compared, and how often each was rebuilt."),
        Column("seed", "bigint", "What decided which old entries these were."),
        Column("sound_through", "bigint", "Position through which it has found all sound."),
        Column("covered", "bigint", "Entries it examined for that: as many."),
        Column("log_id", "string", "Log in which that is."),
        Column("incarnation", "string", "Incarnation of the log in which that is."),
        Column("digest", "string", "Digest of the entry there, in hexadecimal."),
    ),
    order="check",
)

TABLES = (
    LOG,
    FORGOTTEN,
    MESSAGE_VERSION,
    MESSAGE,
    EVENT,
    SEND,
    DELIVERY,
    MENTION,
    DEDUPE,
    ACTIVITY,
    LATENCY,
    AUDIT,
    CHANGES,
    SNAPSHOT,
    SNAPSHOT_BASE,
    VERDICT,
)
"""In an order in which every table comes after its inputs."""

BY_NAME = {table.name: table for table in TABLES}

TABLES_WITH_CONTENT = tuple(table.name for table in TABLES if table.content)
"""Those that have content of entries: what others are made of comes first."""
