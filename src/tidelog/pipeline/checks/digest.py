"""Digest: the chain of digests verifies, so every entry is what was committed (L7, L8).

Reads the store, range by range and in parallel. A range vouches for its inside; where two ranges
meet, the driver joins them. Content that was pruned is vouched for by its digest alone. The head
row's digest covers the end.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from tidelog.base.data.digest import body_digest, entry_digest
from tidelog.pipeline.checks.evidence import Evidence
from tidelog.pipeline.checks.finding import FIRST_FINDINGS, Finding, Verdict
from tidelog.pipeline.source.store_address import GENESIS_DIGEST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

NAME = "digest"
NEEDS = ()

CONTENT = "content"
CHAIN = "chain"
HEAD = "head"
"""The rules: content has its digest, an entry follows the one before, the head covers the end."""

COLUMNS = (
    *("committed_id", "stream", "stream_serial", "surface", "kind", "entity", "ref", "actor"),
    *("committed_at", "body", "data", "body_digest", "digest"),
)
_WITHOUT_CONTENT = tuple(name for name in COLUMNS if name not in ("body", "data"))

_KINDS = {"committed_id": "bigint", "stream_serial": "bigint", "committed_at": "bigint"} | {
    "body_digest": "binary",
    "digest": "binary",
}
_FIRST = {name: _KINDS.get(name, "string") for name in _WITHOUT_CONTENT}

RANGE_DDL = (
    f"first struct<{', '.join(f'{name}: {kind}' for name, kind in _FIRST.items())}>, "
    "last bigint, digests array<binary>, last_at bigint, entries bigint, found bigint, "
    "findings array<struct<at: bigint, rule: string, text: string>>"
)
"""A verified range: its first entry, the end of its last, and what is wrong inside."""


class _Link(NamedTuple):
    """The end of what was verified: what the next entry must follow."""

    digests: tuple[bytes, ...]
    """Its stored digest, and the one it should have if that differs: so one changed digest is one
    finding, not two."""
    at: int
    committed_at: int


def check(evidence: Evidence) -> Verdict:
    """Verify all entries up to the head."""
    ranges = verified(evidence.log(*COLUMNS)).collect()
    return joined(sorted(ranges, key=lambda row: row["first"]["committed_id"]), evidence)


def verified(log: "DataFrame") -> "DataFrame":
    """One row for each range of the log: where it begins and ends, and what is wrong inside."""
    return log.mapInArrow(_verify_range, RANGE_DDL)


def joined(ranges: "list[Row]", evidence: Evidence) -> Verdict:
    """Join ranges in their order and look at the end."""
    head = evidence.head
    found: list[tuple[int, Finding]] = []
    link = _Link((GENESIS_DIGEST,), 0, 0)
    examined = total = 0
    for each in ranges:
        first = each["first"]
        _, problem = _follow(link, tuple(first[name] for name in _WITHOUT_CONTENT))
        if problem:
            found.append((first["committed_id"], _finding(first["committed_id"], CHAIN, problem)))
        found += [(f["at"], _finding(f["at"], f["rule"], f["text"])) for f in each["findings"]]
        examined += each["entries"]
        total += each["found"] + bool(problem)
        link = _Link(tuple(each["digests"]), each["last"], each["last_at"])
    if problem := _end_problem(link, head.digest, head.committed_id, head.committed_at):
        found.append((head.committed_id + 1, Finding(HEAD, "head row", problem)))
        total += 1
    named = [finding for _, finding in sorted(found)][:FIRST_FINDINGS]
    return Verdict(NAME, head.committed_id, examined, tuple(named), total)


def _end_problem(link: _Link, digest: bytes, committed_id: int, committed_at: int) -> str | None:
    if link.at != committed_id:
        return f"says {committed_id}, the log ends at {link.at}"
    if digest not in link.digests:
        return "its digest is not that of the last entry"
    if committed_at < link.committed_at:
        return "is dated before the last entry"
    return None


def _finding(at: int, rule: str, text: str) -> Finding:
    return Finding(rule, f"entry {at}", text)


def _follow(link: _Link | None, row: tuple[Any, ...]) -> tuple[_Link, str | None]:
    """The link that an entry makes, and what is wrong with it; None: nobody knows what is before.

    `row` has the columns of `_WITHOUT_CONTENT` in their order.
    """
    *columns, content, digest = row
    at, committed_at = columns[0], columns[8]
    if link is None:
        return _Link((digest,), at, committed_at), None
    digest_after: Callable[..., bytes] = entry_digest
    expected = [digest_after(before, *columns, content) for before in link.digests]
    if digest in expected:
        return _Link((digest,), at, committed_at), None
    return _Link((digest, expected[0]), at, committed_at), "does not follow the entry before it"


def _verify_range(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    link: _Link | None = None
    first: dict[str, Any] | None = None
    findings: list[dict[str, Any]] = []
    entries = found = 0
    for batch in batches:
        columns = {name: batch.column(name).to_pylist() for name in COLUMNS}
        rows = zip(*(columns[name] for name in _WITHOUT_CONTENT), strict=True)
        contents = zip(columns["body"], columns["data"], strict=True)
        for row, (body, data) in zip(rows, contents, strict=True):
            first = first or dict(zip(_WITHOUT_CONTENT, row, strict=True))
            link, problem = _follow(link, row)
            rules = [(CHAIN, problem)] if problem else []
            if body is None and data is not None:
                rules.append((CONTENT, "data without a body"))
            elif body is not None and body_digest(body, data) != row[-2]:
                rules.append((CONTENT, "is not what was committed"))
            entries += 1
            for rule, text in rules:
                found += 1
                if len(findings) < FIRST_FINDINGS:
                    findings.append({"at": row[0], "rule": rule, "text": text})
    if link is not None:
        summary = {
            "first": first,
            "last": link.at,
            "digests": list(link.digests),
            "last_at": link.committed_at,
            "entries": entries,
            "found": found,
            "findings": findings,
        }
        yield pa.RecordBatch.from_pylist([summary], schema=_RANGE_SCHEMA)


_TYPES = {"bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}
_RANGE_SCHEMA = pa.schema(
    [
        ("first", pa.struct([(name, _TYPES[kind]) for name, kind in _FIRST.items()])),
        ("last", pa.int64()),
        ("digests", pa.list_(pa.binary())),
        ("last_at", pa.int64()),
        ("entries", pa.int64()),
        ("found", pa.int64()),
        (
            "findings",
            pa.list_(pa.struct([("at", pa.int64()), ("rule", pa.string()), ("text", pa.string())])),
        ),
    ]
)
