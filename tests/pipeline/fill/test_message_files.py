"""The fold of files of versions into files of messages: by ranges of the log."""

import random
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.pipeline.lake_rows import serial
from tidelog.pipeline.fill import message_files
from tidelog.pipeline.fill.message_files import fold_files, parting
from tidelog.pipeline.fill.position_ranges import Group, Range
from tidelog.pipeline.transforms import message_fold
from tidelog.pipeline.transforms.message_fold import (
    KEY,
    MESSAGE,
    READ,
    combined,
    messages_of,
    steps_of_messages,
    steps_of_versions,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KINDS = {
    **dict.fromkeys(READ, pa.string()),
    **dict.fromkeys(
        ("committed_id", "history_serial", "data_bytes", "delivery_serial"), pa.int64()
    ),
    "kept": pa.list_(pa.string()),
    "is_available": pa.bool_(),
    "committed_at": pa.timestamp("us", "UTC"),
}
SCHEMA = pa.schema([(name, _KINDS[name]) for name in READ])


def versions_of(seed: int, messages: int = 12) -> pa.Table:
    """Versions of messages that change in turns, with content that is kept, cleared or gone."""
    chosen = random.Random(seed)
    rows: list[dict[str, Any]] = []
    created: set[int] = set()
    for position in range(1, messages * 6):
        message = min(messages - 1, position // 6 + chosen.randrange(4))
        action = chosen.choice(["append", "append", "update", "delete"])
        data: str | None = f'"{position}\u00e9 "'
        kept: list[str] | None = None
        if message not in created:
            created.add(message)
            action = "create"
        elif action != "append" and chosen.random() < 0.5:
            data = None
            kept = ["data"] if chosen.random() < 0.5 else ["extras"]
        rows.append(
            {
                "app_id": "app",
                "channel": f"room-{message % 3}",
                "message_serial": serial(message // 2 + 1),
                "committed_id": position,
                "history_serial": message + 1,
                "data": data,
                "action": action,
                "data_bytes": position,
                "delivery_serial": position,
                "kept": kept,
                "is_available": chosen.random() > 0.1,
                "committed_at": position * 1_000_000,
            }
        )
    return pa.Table.from_pylist(rows, SCHEMA)


def folded(versions: pa.Table) -> list[dict[str, Any]]:
    """All messages, a version after the other: the definition, without a step or a range."""
    messages: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in sorted(versions.to_pylist(), key=lambda row: row["committed_id"]):
        key = tuple(row[name] for name in KEY)
        known = messages.get(key)
        says_all = row["action"] != "append" and (row["data"] is not None or not keeps_data(row))
        begins = known is None or says_all
        before: dict[str, Any] = {"data": None, "is_complete": True} if begins else known or {}
        data = row["data"] if row["data"] is not None else before["data"]
        if None not in (row["data"], before["data"]):
            data = before["data"][:-1] + row["data"][1:]
        serials = [each["history_serial"] for each in (known, row) if each is not None]
        begun = known or {
            **dict.fromkeys(("versions", "appends"), 0),
            "first_committed_id": row["committed_id"],
            "published_at": row["committed_at"],
        }
        messages[key] = {
            **row,
            "history_serial": max((each for each in serials if each is not None), default=None),
            "data": data,
            "is_complete": before["is_complete"] and row["is_available"],
            "versions": begun["versions"] + 1,
            "appends": begun["appends"] + (row["action"] == "append"),
            "first_committed_id": begun["first_committed_id"],
            "last_committed_id": row["committed_id"],
            "published_at": begun["published_at"],
            "updated_at": row["committed_at"],
            "state": "deleted" if row["action"] == "delete" else "visible",
        }
    rows = [{name: messages[key].get(name) for name in MESSAGE} for key in sorted(messages)]
    return [row if row["is_complete"] else {**row, "data": None} for row in rows]


def keeps_data(version: dict[str, Any]) -> bool:
    """Whether a version leaves the data as it was."""
    return "data" in (version["kept"] or ())


def rows_of(messages: pa.Table) -> list[dict[str, Any]]:
    """Rows in the order of their keys."""
    rows: list[dict[str, Any]] = messages.sort_by([(name, "ascending") for name in KEY]).to_pylist()
    return rows


def between(versions: pa.Table, after: int, through: int) -> pa.Table:
    """A range of the log, its rows in no order."""
    rows = list(range(after, through))  # a row for each position, from 1
    random.Random(after).shuffle(rows)
    return versions.take(rows)


def by_ranges(versions: pa.Table, seed: int) -> list[dict[str, Any]]:
    """All messages, of steps of some ranges of the log that come together in any order."""
    chosen = random.Random(seed)
    cuts = [0, *sorted(chosen.sample(range(1, versions.num_rows), 4)), versions.num_rows]
    steps = [combined(steps_of_versions(between(versions, *ids))) for ids in pairwise(cuts)]
    chosen.shuffle(steps)
    return rows_of(messages_of(combined(pa.concat_tables(steps))))


@pytest.mark.parametrize("seed", range(20))
def test_wherever_the_log_is_cut_the_fold_is_the_same(seed: int) -> None:
    """Steps of ranges make, in any order, what all versions make one after the other."""
    versions = versions_of(seed)
    assert by_ranges(versions, seed) == folded(versions)
    assert rows_of(messages_of(combined(steps_of_versions(versions)))) == folded(versions)


def as_they_come(steps: pa.Table) -> Any:
    """Wrong: rows of a message in the order of the files."""
    return _by_message(steps.set_column(3, "committed_id", pa.array(range(len(steps)))))


def by_serial_alone(steps: pa.Table) -> Any:
    """Wrong: the same serial in two channels is one message."""
    return _by_message(steps.set_column(1, "channel", pa.array([""] * len(steps))))


def all_parts(data: Any, order: Any, counts: Any, starts: Any) -> Any:
    """Wrong: what came before the last version that says all of the data counts as well."""
    return _joined(data, order, counts | True, starts)


def none_keeps(kept: Any) -> Any:
    """Wrong: a version that keeps its data says that there is none."""
    return pa.array([False] * len(kept))


_by_message, _joined = message_fold._by_message, message_fold._joined


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("_by_message", as_they_come),
        ("_by_message", by_serial_alone),
        ("_joined", all_parts),
        ("_keeps_data", none_keeps),
    ],
)
def test_a_wrong_fold_would_be_seen(name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above compares tells a fold with any of these faults from a right one."""
    monkeypatch.setattr(message_fold, name, wrong)
    versions = [versions_of(seed) for seed in range(20)]
    assert any(by_ranges(each, seed) != folded(each) for seed, each in enumerate(versions))


@pytest.mark.parametrize("seed", range(10))
def test_a_message_goes_on_from_what_it_was(seed: int) -> None:
    """Messages of a first part, folded with the versions of the rest, are those of all."""
    versions = versions_of(seed)
    cut = versions.num_rows // 2
    before = messages_of(combined(steps_of_versions(between(versions, 0, cut))))
    later = steps_of_versions(between(versions, cut, versions.num_rows))
    assert rows_of(
        messages_of(combined(pa.concat_tables([steps_of_messages(before), later])))
    ) == folded(versions)


def test_messages_are_parted_where_ranges_end() -> None:
    """A part ends with the newest message up to there, whatever the order of the row groups."""
    groups = [
        Group("a", 1, 30, 6, 1, "s1"),
        Group("b", 2, 12, 6, 1, "s0"),
        Group("b", 31, 40, 6, 1, "s3"),
        Group("c", 41, 45, 3, 1, "s4"),
    ]
    ranges = [Range(0, 30, ("a", "b")), Range(30, 40, ("b",)), Range(40, 45, ("c",))]
    assert parting(ranges, groups) == ["s1", "s3"]
    assert parting(ranges[:1], groups) == []
    assert parting([], []) == []


@pytest.mark.parametrize("ranges", ["here", "one", "many"])
def test_files_of_many_small_builds_make_the_same_messages(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges: str
) -> None:
    """Neither the order of the files nor that they overlap changes a column of a message."""
    if ranges == "one":
        monkeypatch.setattr(message_files, "HERE_ROWS", 0)
    if ranges == "many":
        monkeypatch.setattr(message_files, "RANGE_ROWS", 15)
        monkeypatch.setattr(message_files, "PACK_BYTES", 500)
        monkeypatch.setattr(message_files, "FILE_ROWS", 3)
    versions = versions_of(99, messages=20)
    chosen = random.Random(3)
    positions = list(range(versions.num_rows))
    # Of every four rows some go to another file: each file has gaps that another one fills.
    files = [tmp_path / f"{name}.parquet" for name in ("z", "m", "a", "k")]
    parts: list[list[int]] = [[] for _ in files]
    for position in positions:
        nearest = position * len(files) // len(positions)
        parts[nearest if chosen.random() < 0.7 else chosen.randrange(len(files))].append(position)
    for file, part in zip(files, parts, strict=True):
        chosen.shuffle(part)
        pq.write_table(versions.take(part), file, row_group_size=8)
    written = fold_files(spark, [str(file) for file in files], tmp_path / "out")
    found = pa.concat_tables([pq.read_table(file) for file in written])
    assert rows_of(found) == folded(versions)
    assert (len(written) > 1) == (ranges == "many")
    assert all(pq.read_metadata(file).num_rows <= message_files.FILE_ROWS for file in written)
    serials = [pq.read_table(file)["message_serial"].to_pylist() for file in written]
    assert all(each == sorted(each) for each in serials)
    spans = sorted((each[0], each[-1]) for each in serials)
    assert all(one[1] <= next_one[0] for one, next_one in pairwise(spans)), (
        "a file has the messages of a part of the log, so that what is new changes few"
    )
