"""Do the stored relations agree? The nine rules of mesh 6.5, read-only and page by page.

What one transaction wrote together is read by one statement wherever a rule compares it, so a
broker at work is never taken for a damaged one. Where a second read is needed it looks for ids,
which leave only when they have expired, or for deliveries, which leave only when they are swept;
by then their message is old enough to be excused.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct

from tidelog.log.derived import pages
from tidelog.mesh.protocol.model import DAY_MS, PUSH, Mesh, mesh_id_of, queue_recipient, stream_name
from tidelog.mesh.upkeep.retention import FINISHED_MS
from tidelog.store.engine import Store
from tidelog.store.rows import Row

PAGE = 200
"""Rows of one read; entries are read with their content."""

FAN_OUT_MS = 600_000
"""An unfinished delivery that is younger is not checked by rule 5 yet."""

SWEPT_MS = FINISHED_MS - DAY_MS
"""Deliveries of a message that is older may have been swept. A day less than they are kept: the
clock that swept them may have been ahead, and a check goes on while a sweep does."""

RULES = {
    1: "an id has its message, or says that it is gone and has a tombstone",
    2: "an id has its place in the history, or the history is pruned",
    3: "a message has its id, unless that has expired",
    4: "a place in the history has a message or a tombstone",
    5: "an unfinished delivery has its id",
    6: "a mention has a message or a tombstone",
    7: "the history of a mesh has no gap and nothing twice",
    8: "a message has the deliveries it was accepted with, unless they were swept",
    9: "a message has a mention for everybody it mentions",
}

_FIRST = stream_name("")
"""No stream or scope of a mesh is before this."""

_outcome = msgspec.json.Decoder(dict[str, object]).decode


class EntryContent(Struct):
    """What the content of an entry says about the rows that were written with it."""

    client_message_id: str
    mentions: list[str] = []
    recipients: int | None = None
    """Of a topic, at that moment; entries of earlier versions do not say."""
    webhooks: int | None = None


_said = msgspec.json.Decoder(EntryContent).decode


class Finding(NamedTuple):
    """A row without its counterpart."""

    rule: int
    """Number in `RULES`."""
    mesh_id: str
    relation: str
    """Where the row is, under the contract's name."""
    key: str
    """Which row it is."""
    problem: str


async def find_orphans(store: Store, now_ms: int) -> AsyncIterator[Finding]:
    """Every finding, as it is found."""
    async for finding in _check_keys(store):
        yield finding
    async for finding in _check_history(store, now_ms):
        yield finding
    async for finding in _check_deliveries(store, now_ms):
        yield finding
    async for finding in _check_mentions(store):
        yield finding


async def _check_keys(store: Store) -> AsyncIterator[Finding]:
    """Rules 1 and 2."""
    async for page in pages(store, "mesh_check_keys", (_FIRST, ""), PAGE):
        for scope, key, available, outcome, entity, has_content, has_tombstone in page:
            where = (mesh_id_of(scope), "client_message_dedupe", key)
            message = _message_in(outcome)
            if message is None:
                yield Finding(1, *where, "its stored reply names no message")
            elif entity is None:
                # Only a damaged history lacks the entry; a tombstone is looked for on its own.
                if available or not await store.rows("mesh_tombstone", (message,)):
                    yield Finding(1, *where, f"message {message} is not there")
                    yield Finding(2, *where, f"message {message} has no place in the history")
            elif entity != message:
                yield Finding(1, *where, f"it names {message} and was committed with {entity}")
            elif has_content and not available:
                yield Finding(1, *where, f"message {message} is there, the id says it is gone")
            elif not has_content and available:
                yield Finding(1, *where, f"message {message} is not there, the id says it is")
            elif not has_content and not has_tombstone:
                yield Finding(1, *where, f"message {message} is gone without a tombstone")


def _message_in(outcome: bytes) -> str | None:
    """The message that a stored reply names; None if that is damaged."""
    try:
        message = _outcome(outcome).get("broker_message_id")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return message if isinstance(message, str) else None


async def _check_history(store: Store, now_ms: int) -> AsyncIterator[Finding]:
    """Rules 3, 4, 7, 8 and 9, along the history of every mesh."""
    last_stream, last_serial = "", 0
    mesh: Mesh | None = None
    async for page in pages(store, "mesh_check_entries", (_FIRST, 0), PAGE):
        entries = [(stream, message, body) for stream, _, message, _, _, _, body, _ in page]
        unknown = await _without_id(store, entries)
        for stream, serial, message, committed_at, _, _, body, has_tombstone in page:
            mesh_id = mesh_id_of(stream)
            if stream != last_stream:
                last_stream, last_serial = stream, 0
                mesh = await _mesh(store, mesh_id)
            if serial != last_serial + 1:
                yield Finding(7, mesh_id, "message_history", str(serial), _gap(last_serial, serial))
            last_serial = serial
            if body is None:
                if not has_tombstone:
                    yield Finding(
                        4, mesh_id, "message_history", str(serial), f"{message} has no content"
                    )
            elif message in unknown and not _has_expired(mesh, committed_at, now_ms):
                yield Finding(3, mesh_id, "message", message, unknown[message])
        said = [read_content(body) for *_, body, _ in page]
        for finding in await _without_deliveries(store, page, said, now_ms - SWEPT_MS):
            yield finding
        for finding in await _without_mentions(store, page, said):
            yield finding


async def _without_deliveries(
    store: Store, page: Sequence[Row], contents: Sequence[EntryContent | None], since_ms: int
) -> list[Finding]:
    """Rule 8, of messages that are younger than a time."""
    asked: dict[tuple[str, str], tuple[str, EntryContent | None]] = {}
    for (stream, _, message, committed_at, kind, ref, *_), said in zip(page, contents, strict=True):
        if committed_at < since_ms:
            continue
        match kind:
            case "send.dm":
                recipient = ref
            case "send.queue":
                recipient = queue_recipient(ref)
            case _:
                recipient = ""  # a topic: its recipients are counted, and only its content says it
        if recipient or said is not None:
            asked[message, recipient] = (mesh_id_of(stream), said)
    found = await store.rows_of("mesh_check_fan_out", list(asked))
    findings = []
    for ((message, recipient), (mesh_id, said)), [counts] in zip(asked.items(), found, strict=True):
        to_members, to_endpoints, to_recipient = counts
        members = 1 if recipient else said and said.recipients
        endpoints = said and said.webhooks
        where = (8, mesh_id, "delivery_queue")
        if recipient and not to_recipient:
            findings.append(Finding(*where, f"{message}/{recipient}/{PUSH}", "is not there"))
        elif members is not None and to_members != members:
            problem = f"has {to_members} deliveries to members, was accepted with {members}"
            findings.append(Finding(*where, message, problem))
        if endpoints is not None and to_endpoints != endpoints:
            problem = f"has {to_endpoints} deliveries to webhooks, was accepted with {endpoints}"
            findings.append(Finding(*where, message, problem))
    return findings


async def _without_mentions(
    store: Store, page: Sequence[Row], contents: Sequence[EntryContent | None]
) -> list[Finding]:
    """Rule 9; a message whose content is gone mentions nobody."""
    asked: dict[tuple[str], tuple[str, list[str]]] = {}
    for (stream, _, message, *_), said in zip(page, contents, strict=True):
        if said is not None and said.mentions:
            asked[message,] = (mesh_id_of(stream), said.mentions)
    found = await store.rows_of("mesh_check_mentioned", list(asked))
    return [
        Finding(9, mesh_id, "mention_index", f"{message}/{mentioned}", "is not there")
        for ((message,), (mesh_id, mentions)), rows in zip(asked.items(), found, strict=True)
        for mentioned in sorted(set(mentions).difference(key for (key,) in rows))
    ]


def read_content(body: bytes | None) -> EntryContent | None:
    """What an entry says; None if its content is gone or damaged, which other rules tell."""
    try:
        return None if body is None else _said(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


async def _check_deliveries(store: Store, now_ms: int) -> AsyncIterator[Finding]:
    """Rule 5; an id does not expire while its message has unfinished deliveries."""
    before = now_ms - FAN_OUT_MS
    start = ("", "", "", 0, "")
    async for page in pages(store, "mesh_check_deliveries", start, PAGE, before):
        entries = [(stream_name(row[0]), row[5], row[6]) for row in page]
        unknown = await _without_id(store, entries)
        for mesh_id, recipient, channel, _, endpoint_id, message, _ in page:
            if message in unknown:
                key = "/".join(filter(None, (message, recipient, channel, endpoint_id)))
                yield Finding(5, mesh_id, "delivery_queue", key, unknown[message])


async def _check_mentions(store: Store) -> AsyncIterator[Finding]:
    """Rule 6."""
    async for page in pages(store, "mesh_check_mentions", ("", ""), PAGE):
        for message, mentioned, mesh_id, has_message, has_tombstone in page:
            if not has_message and not has_tombstone:
                key = f"{message}/{mentioned}"
                yield Finding(6, mesh_id, "mention_index", key, "there is no such message")


async def _without_id(
    store: Store, entries: Iterable[tuple[str, str, bytes | None]]
) -> dict[str, str]:
    """Of streams, messages and contents the messages without an id, and what is wrong with each."""
    wrong: dict[str, str] = {}
    asked: dict[str, tuple[str, str]] = {}
    for stream, message, body in entries:
        said = read_content(body)
        if said is not None and said.client_message_id:
            asked[message] = (stream, said.client_message_id)
        else:
            wrong[message] = "the message is not there" if body is None else "cannot be read"
    found = await store.rows_of("mesh_dedupe_row", list(asked.values()))
    for (message, (_, client_message_id)), rows in zip(asked.items(), found, strict=True):
        if not rows:
            wrong[message] = f"id {client_message_id} is not known"
        elif _message_in(rows[0][5]) != message:
            wrong[message] = f"id {client_message_id} belongs to another message"
    return wrong


async def _mesh(store: Store, mesh_id: str) -> Mesh | None:
    rows = await store.rows("mesh_by_id", (mesh_id,))
    return Mesh(*rows[0]) if rows else None


def _has_expired(mesh: Mesh | None, committed_at: int, now_ms: int) -> bool:
    """Whether the id of a message of this age may be gone."""
    if mesh is None or mesh.shortest_window_days is None:
        return False
    return committed_at + mesh.shortest_window_days * DAY_MS < now_ms


def _gap(last: int, found: int) -> str:
    if found <= last:
        return f"{found} is there twice"
    return f"nothing from {last + 1} to {found - 1}"
