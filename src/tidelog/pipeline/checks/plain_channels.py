"""That nothing is missing beside a few entries of channels, told without Spark.

The rules are those of `orphans`, as far as they concern channels. Whatever is not plainly sound, or
is of another surface, is left to Spark, which says what is wrong with it.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tidelog.pipeline.checks.spool import HIGHEST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidelog.pipeline.checks.evidence import Evidence

_ELSEWHERE = ("event_partitions", "archived_events", "deliveries", "mentions", "tombstones")
"""Relations that have no rows for entries of channels."""

_COLUMNS = ("committed_id", "stream", "surface", "kind", "entity", "committed_at", "body")


class _Entry(NamedTuple):
    stream: str
    entity: str
    action: str
    message: int
    """Where its message begins."""
    at: int
    has_content: bool
    key: str | None
    """Of the operation that it was written for, if that had one."""


class _Said(msgspec.Struct, gc=False):
    op_id: str | None = None


_said = msgspec.json.Decoder(_Said).decode


class _Unclear(Exception):  # noqa: N818 - it ends the look, and is no failure
    """What is there is not plainly sound."""


def is_plainly_sound(evidence: "Evidence") -> bool:
    """Whether no rule of `orphans` is broken; if evidence is not little, the answer is no."""
    if evidence.log_files or any(evidence.spooled(name).rows for name in _ELSEWHERE):
        return False
    try:
        _look(evidence, _entries(evidence))
    except _Unclear:
        return False
    return True


def _require(holds: bool) -> None:
    if not holds:
        raise _Unclear


def _entries(evidence: "Evidence") -> dict[int, _Entry]:
    rows = evidence.tables_beside(_COLUMNS)
    _require(rows is not None)
    assert rows is not None  # noqa: S101 - required
    found: dict[int, _Entry] = {}
    for at, stream, surface, kind, entity, committed_at, body in zip(
        *(rows[name].to_pylist() for name in _COLUMNS), strict=True
    ):
        number = entity[-20:]
        _require(surface == "channels" and number.isdecimal() and int(number) <= HIGHEST)
        _require(at not in found)
        found[at] = _Entry(
            stream,
            entity,
            kind.removeprefix("message."),
            int(number),
            committed_at,
            body is not None,
            None if body is None else _key_in(body),
        )
    return found


def _key_in(body: bytes) -> str | None:
    try:
        return _said(body).op_id
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _Unclear from error


def _look(evidence: "Evidence", entries: dict[int, _Entry]) -> None:
    """Compare entries with versions, messages and keys; what came after the head counts no more."""
    head, now = evidence.head.committed_id, evidence.address.head().committed_id

    def is_later(position: int) -> bool:
        return head < position <= now

    versions, begun = set[int](), set[int]()
    for message, at in _rows(evidence, "channel_versions", "message", "committed_id"):
        if not is_later(at):
            entry = entries.get(at)
            _require(entry is not None and entry.has_content and entry.message == message)
            versions.add(at)
        if not is_later(message):
            begun.add(message)
    messages = set[int]()
    for message, stream in _rows(evidence, "channel_messages", "message", "stream"):
        if not is_later(message):
            entry = entries.get(message)
            _require(entry is not None and entry.stream == stream and entry.message == message)
            _require(message in begun)
            messages.add(message)
    written = {at: entry for at, entry in entries.items() if entry.has_content}
    _require(written.keys() <= versions)
    _require(begun.union(entry.message for entry in written.values()) <= messages)
    known = set[tuple[int, str, str]]()
    for at, scope, key, seen_at in _rows(
        evidence, "keys", "committed_id", "scope", "key", "first_seen_at"
    ):
        _require(not scope.startswith("mesh/"))
        if at is not None and not is_later(at):
            entry = entries.get(at)
            _require(entry is not None and entry.has_content and entry.at == seen_at)
            _require(entry is not None and _is_of(scope, entry))
            known.add((at, scope, key))
    for at, entry in written.items():
        if entry.key is not None:
            scope = f"{entry.stream}/{entry.entity}/{entry.action}"
            _require((at, scope, entry.key) in known)


def _is_of(scope: str, entry: _Entry) -> bool:
    """Whether a key of a scope may have been written with an entry."""
    own = f"{entry.stream}/{entry.entity}/"
    return scope in (entry.stream, f"{entry.stream}//runs") or scope.startswith(own)


def _rows(evidence: "Evidence", name: str, *columns: str) -> "Iterator[tuple[Any, ...]]":
    spool = evidence.spooled(name)
    _require(not spool.files)
    table = spool.scan().to_table(list(columns))
    return zip(*(table[column].to_pylist() for column in columns), strict=True)
