"""Rows beside some entries: looked up by their keys, and found in the order of their relations.

From an entry to its rows leads what the entry says: the keys of the rows that must be there. A row
that belongs to no entry is found by no key, so some rows of each relation are read in its own order
from a place that nobody can foresee, and the entries that they name are looked up. Of every entry
that is here, all that concerns it was read.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.pipeline.checks.extent import Range
from tidelog.pipeline.checks.spool import BESIDE, ENTRIES, HIGHEST, LOWEST, RELATIONS, Spool
from tidelog.pipeline.source.store_address import StoreAddress, StoreHead

SAMPLE_ROWS = 2_000
"""Rows of each relation that are read in its own order: half a page."""

LOOKED_AT = ("committed_id", "stream", "surface", "entity", "body")
"""Columns of an entry that lead to the rows beside it."""


class Ref(NamedTuple):
    """Something that was found, so that it can be looked at again."""

    kind: str
    """`entry` at a position, `message` of a mesh, `key`, `version` or `partition` of an event."""
    name: tuple[Any, ...]
    """The position; else the key of the row."""


class _Said(msgspec.Struct, gc=False):
    """What the body of an entry says of the rows beside it."""

    partitions: list[str] | None = None
    client_message_id: str | None = None


_said = msgspec.json.Decoder(_Said).decode


class Gathered:
    """Rows beside entries, found by keys, and the entries that other rows name."""

    def __init__(
        self, address: StoreAddress, head: StoreHead, ranges: Sequence[Range], folder: Path
    ) -> None:
        self.entries = Spool(folder, ENTRIES)
        self.rows = {name: Spool(folder, RELATIONS[name]) for name in BESIDE}
        self._address = address
        self._head = head
        self._ranges = ranges
        self._known: dict[str, set[tuple[Any, ...]]] = {name: set() for name in BESIDE}
        self._fetched: set[int] = set()

    # From entries to rows.

    def follow_entries(self, entries: pa.Table) -> None:
        """Look up the rows that belong to entries, and the entries that begin their messages."""
        named = self._look_up(entries)
        self._look_up(self._fetch(named))

    def _look_up(self, entries: pa.Table) -> set[int]:
        """Look up rows; returns where messages begin, and where what is left of them begins."""
        messages: set[int] = set()
        versions, positions, events = [], [], []
        partitions, keys, sends = [], [], []
        columns = (entries[name].to_pylist() for name in LOOKED_AT)
        for at, stream, surface, entity, body in zip(*columns, strict=True):
            said = _told(body)
            if surface == "channels":
                message = _message_of(entity)
                positions.append(at)
                if message is not None:
                    messages.add(message)
                    versions.append((message, at))
            elif surface == "sync":
                events.append(at)
                partitions += [(name, at) for name in said.partitions or ()]
                keys.append((stream, entity))
            elif surface == "mesh":
                sends.append(entity)
                if said.client_message_id is not None:
                    keys.append((stream, said.client_message_id))
        self._add("channel_messages", "check_channel_messages_named", sorted(messages))
        self._add("channel_versions", "check_channel_versions_named", versions)
        first = self._add("channel_versions", "check_channel_versions_first", sorted(messages))
        self._add("event_partitions", "check_event_partitions_named", partitions)
        self._add("archived_events", "check_archived_events_named", events)
        self._add("keys", "check_keys_named", keys)
        self._add("keys", "check_keys_at", positions)
        for name in ("deliveries", "mentions", "tombstones"):
            self._add(name, f"check_{name}_named", sends)
        return messages.union(*(page["committed_id"].to_pylist() for page in first))

    def _add(self, name: str, query: str, wanted: Sequence[Any]) -> list[pa.Table]:
        """Look up rows of a relation; returns those that were not known."""
        pages = self._address.named(query, wanted) if wanted else ()
        return [self._keep(name, page) for page in pages]

    def _keep(self, name: str, page: pa.Table) -> pa.Table:
        """Keep the rows that are not known yet; returns them."""
        relation, known = RELATIONS[name], self._known[name]
        is_new = []
        for key in zip(*(page[column].to_pylist() for column in relation.key), strict=True):
            is_new.append(None not in key and key not in known)
            known.add(key)
        new = page.filter(pa.array(is_new, pa.bool_()))
        self.rows[name].add(new)
        return new

    # From rows to entries.

    def read_on(self, chance: random.Random) -> None:
        """Read relations in their own order: those with positions in the ranges, and all by chance.

        Rows that belong to no entry are found so.
        """
        found: dict[str, list[pa.Table]] = {name: [] for name in BESIDE}
        for name in ("channel_messages", "channel_versions", "archived_events"):
            for each in self._ranges:
                found[name] += self._of_range(name, each)
        for name in BESIDE:
            start = self._start(name, chance)
            found[name] += self._circle(name, start)
        self._follow_rows(
            {name: [self._keep(name, page) for page in pages] for name, pages in found.items()}
        )

    def look_again(self, refs: Sequence[Ref]) -> None:
        """Read what was found once more, and all that belongs to it."""
        named: dict[str, list[tuple[Any, ...]]] = {}
        for ref in refs:
            named.setdefault(ref.kind, []).append(ref.name)
        positions = [at for (at,) in named.get("entry", ())]
        sends = [message for (message,) in named.get("message", ())]
        wanted: dict[str, list[Any]] = {
            "channel_messages": positions,
            "channel_versions": named.get("version", []),
            "event_partitions": named.get("partition", []),
            "archived_events": positions,
            "keys": named.get("key", []),
            **dict.fromkeys(("deliveries", "mentions", "tombstones"), sends),
        }
        self._follow_rows(
            {
                name: [
                    self._keep(name, page)
                    for page in self._address.named(f"check_{name}_named", each)
                ]
                for name, each in wanted.items()
            },
            positions,
        )

    def _of_range(self, name: str, wanted: Range) -> Iterator[pa.Table]:
        """Rows of a relation whose key begins with a position of a range, or is after the log."""
        relation, head = RELATIONS[name], self._head.committed_id
        after = (wanted.after, *relation.lowest[1:])
        last = wanted.through if wanted.through < head else HIGHEST
        for page in self._address.pages(f"check_{name}", relation.key, after):
            inside = page.filter(pc.field(relation.key[0]) <= last)
            at = pc.field("committed_id")
            if name == "channel_versions":  # later ones belong to a later range
                yield inside.filter((at <= wanted.through) | (at > head))
            else:
                yield inside
            if inside.num_rows < page.num_rows:
                return

    def _start(self, name: str, chance: random.Random) -> tuple[Any, ...]:
        """A key of a relation to begin at, by chance: where some row is that was looked up."""
        relation, known = RELATIONS[name], self._known[name]
        if known:
            return chance.choice(sorted(known))
        if relation.lowest[0] == LOWEST:
            return (chance.randint(0, self._head.committed_id), *relation.lowest[1:])
        return relation.lowest

    def _circle(self, name: str, start: tuple[Any, ...]) -> Iterator[pa.Table]:
        """Rows of a relation from a key on, and after its last row from its first one."""
        relation, left = RELATIONS[name], SAMPLE_ROWS
        for begin, end in ((start, None), (relation.lowest, start)):
            for page in self._address.pages(f"check_{name}", relation.key, begin):
                part = page.slice(0, left)
                keys = list(zip(*(part[c].to_pylist() for c in relation.key), strict=True))
                part = part.slice(0, sum(end is None or key <= end for key in keys))
                left -= part.num_rows
                yield part
                if left <= 0 or part.num_rows < len(keys):
                    break
            if left <= 0:
                return

    def _follow_rows(self, rows: dict[str, list[pa.Table]], positions: Iterable[int] = ()) -> None:
        """Look up the entries that rows name, and all that belongs to those."""
        at = set(positions)
        for name, column in (
            *(("channel_messages", "message"), ("channel_versions", "message")),
            *(("channel_versions", "committed_id"), ("event_partitions", "committed_id")),
            *(("archived_events", "committed_id"), ("keys", "committed_id")),
        ):
            for page in rows.get(name, ()):
                at.update(each for each in page[column].to_pylist() if each is not None)
        places = {
            (f"mesh/{mesh_id}", history_id)
            for name in ("deliveries", "mentions")
            for page in rows.get(name, ())
            for mesh_id, history_id in zip(
                page["mesh_id"].to_pylist(), page["history_id"].to_pylist(), strict=True
            )
        }
        entries = [self._fetch(at)]
        placed = self._address.named("check_log_placed", sorted(places))
        entries += [self._new_entries(page) for page in placed]
        whole = pa.concat_tables(table.select(LOOKED_AT).cast(_SCHEMA) for table in entries)
        messages = {
            message
            for page in rows.get("channel_versions", ())
            for message in page["message"].to_pylist()
        }
        self._add("channel_messages", "check_channel_messages_named", sorted(messages))
        self.follow_entries(whole)

    def _fetch(self, positions: Iterable[int]) -> pa.Table:
        """Entries at positions that were not read yet."""
        head = self._head.committed_id
        wanted = sorted(
            at
            for at in positions
            if 0 < at <= head
            and at not in self._fetched
            and not any(each.after < at <= each.through for each in self._ranges)
        )
        pages = [self._new_entries(page) for page in self._address.named("check_log_at", wanted)]
        return pa.concat_tables(
            [_SCHEMA.empty_table(), *(page.select(LOOKED_AT) for page in pages)]
        )

    def _new_entries(self, page: pa.Table) -> pa.Table:
        """Keep entries that are not known yet, up to the head; returns them."""
        head, is_new = self._head.committed_id, []
        for at in page["committed_id"].to_pylist():
            is_known = at in self._fetched or any(r.after < at <= r.through for r in self._ranges)
            is_new.append(0 < at <= head and not is_known)
            self._fetched.add(at)
        schema = ENTRIES.schema
        new = page.filter(pa.array(is_new, pa.bool_())).select(schema.names).cast(schema)
        self.entries.add(new)
        return new


_SCHEMA = pa.schema([ENTRIES.schema.field(name) for name in LOOKED_AT])


def _told(body: bytes | None) -> _Said:
    """What a body says; one that cannot be read says nothing, and the digest tells of it."""
    try:
        return _Said() if body is None else _said(body)
    except msgspec.MsgspecError:
        return _Said()


def _message_of(entity: str) -> int | None:
    """The position at which a channel message begins."""
    number = entity[-20:]
    return int(number) if number.isdecimal() and int(number) <= HIGHEST else None
