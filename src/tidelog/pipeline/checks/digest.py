"""Digest: the chain of digests verifies, so every entry is what was committed (L7, L8).

Reads the store, piece by piece and in parallel. A piece vouches for its inside; where two of them
meet, the driver joins them. The first one of a range follows the entry before it. Content that was
pruned is vouched for by its digest alone. The head row's digest covers the end.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from tidelog.base.data.digest import body_digest, entry_digest
from tidelog.pipeline.checks.evidence import Evidence
from tidelog.pipeline.checks.finding import FIRST_FINDINGS, Finding, Verdict
from tidelog.pipeline.source.store_address import GENESIS_DIGEST

if TYPE_CHECKING:
    from pyspark.sql import Row

    from tidelog.pipeline.checks.extent import Range

NAME = "digest"

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
"""A verified piece: its first entry, the end of its last, and what is wrong inside."""


class _Link(NamedTuple):
    """The end of what was verified: what the next entry must follow."""

    digests: tuple[bytes, ...]
    """Its stored digest, and the one it should have if that differs: so one changed digest is one
    finding, not two."""
    at: int
    committed_at: int


def check(evidence: Evidence, ranges: "Sequence[Range]") -> Verdict:
    """Verify the entries of ranges."""
    head = evidence.head
    found: list[tuple[int, Finding]] = []
    examined = total = 0
    last = head.committed_id
    end: _Link | None = _Link((evidence.digest_at(last) or b"",), last, 0)
    for each in ranges:
        before = GENESIS_DIGEST if not each.after else evidence.digest_at(each.after)
        link = None if before is None else _Link((before,), each.after, 0)
        for piece in _pieces(evidence, each):
            first = piece["first"]
            at = first["committed_id"]
            _, problem = _follow(link, tuple(first[name] for name in _WITHOUT_CONTENT))
            if problem:
                found.append((at, _finding(at, CHAIN, problem)))
            found += [(f["at"], _finding(f["at"], f["rule"], f["text"])) for f in piece["findings"]]
            examined += piece["entries"]
            total += piece["found"] + bool(problem)
            link = _Link(tuple(piece["digests"]), piece["last"], piece["last_at"])
        if each.through == head.committed_id:
            end = link
    if problem := _end_problem(end, head.digest, head.committed_id, head.committed_at):
        found.append((head.committed_id + 1, Finding(HEAD, "head row", problem, head.committed_id)))
        total += 1
    named = [finding for _, finding in sorted(found)][:FIRST_FINDINGS]
    return Verdict(NAME, head.committed_id, examined, tuple(named), total, ranges=tuple(ranges))


def _pieces(evidence: Evidence, wanted: "Range") -> "Iterable[Row | dict[str, Any]]":
    """One row for each piece of a range, in order: where it begins and ends, what is wrong."""
    tables = evidence.log_tables([wanted], COLUMNS)
    if not evidence.log_files:
        return [row for t in tables for row in _verified(t.to_batches()).to_pylist()]

    files, columns = evidence.log_files, list(COLUMNS)
    after, through = wanted

    def verify(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyarrow import dataset

        inside = (dataset.field("committed_id") > after) & (
            dataset.field("committed_id") <= through
        )
        for batch in batches:
            for number in batch.column("id").to_pylist():
                rows = dataset.dataset(files[number], format="parquet").to_batches(
                    columns=columns, filter=inside, batch_size=4096, batch_readahead=2
                )
                yield _verified(rows)

    numbers = evidence.spark.range(0, len(files), 1, len(files))
    pieces = numbers.mapInArrow(verify, RANGE_DDL).collect()
    return sorted(pieces, key=lambda row: row["first"]["committed_id"])


def _end_problem(
    link: _Link | None, digest: bytes, committed_id: int, committed_at: int
) -> str | None:
    if link is None or link.at != committed_id:
        return f"says {committed_id}, the log ends at {link.at if link else '?'}"
    if digest not in link.digests:
        return "its digest is not that of the last entry"
    if committed_at < link.committed_at:
        return "is dated before the last entry"
    return None


def _finding(at: int, rule: str, text: str) -> Finding:
    return Finding(rule, f"entry {at}", text, at)


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


def _verified(batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """Entries in order as one row of `RANGE_DDL`; none, if there are none."""
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
    summary: list[dict[str, Any]] = []
    if link is not None:
        piece = {
            "first": first,
            "last": link.at,
            "digests": list(link.digests),
            "last_at": link.committed_at,
            "entries": entries,
            "found": found,
            "findings": findings,
        }
        summary.append(piece)
    return pa.RecordBatch.from_pylist(summary, schema=_RANGE_SCHEMA)


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
