"""Files of versions: those of one channel lie together, and every version is there once."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyarrow.dataset import field

from tidelog.pipeline.fill import row_files
from tidelog.pipeline.fill.row_files import write_rows
from tidelog.pipeline.frames import arrow_schema
from tidelog.pipeline.lake import parquet_file
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.tables import LOG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANNELS = 40
ENTRIES = 8000
FILES = 4


def entry(position: int) -> dict[str, Any]:
    """Channels take turns; every tenth entry is of another surface."""
    channel = position % CHANNELS
    is_sync = position % 10 == 9
    return {
        "committed_id": position,
        "stream": "sync" if is_sync else f"channels/app/room-{channel}",
        "stream_serial": position,
        "surface": "sync" if is_sync else "channels",
        "kind": "set" if is_sync else "message.create",
        "entity": f"{position:020d}",
        "ref": "",
        "actor": "ana",
        "committed_at": position * 1000,
        "body": b'{"history_serial":%d,"data":"%d"}' % (position, position),
        "body_digest": b"",
        "digest": b"",
    }


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Files of the table `log`, each with a range of it."""
    folder = tmp_path_factory.mktemp("log")
    entries = pa.Table.from_pylist(
        [entry(position) for position in range(1, ENTRIES + 1)], arrow_schema(LOG)
    )
    files = [folder / f"{number}.parquet" for number in range(FILES)]
    for number, file in enumerate(files):
        rows = entries.slice(number * ENTRIES // FILES, ENTRIES // FILES)
        pq.write_table(rows, file, row_group_size=500)
    return [str(file) for file in files]


def positions(files: list[Path]) -> list[int]:
    """The positions of all versions in some files, in order."""
    return sorted(pa.concat_tables(map(pq.read_table, files))["committed_id"].to_pylist())


@pytest.mark.parametrize("is_small", [True, False])
def test_every_version_after_a_position_is_written_once(
    spark: "SparkSession",
    log: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_small: bool,
) -> None:
    """By the driver and by tasks, in one range or many, however much there is before it."""
    monkeypatch.setattr(row_files, "SORTED_ROWS", 1200)
    if not is_small:
        monkeypatch.setattr(row_files, "is_read_here", lambda *_: False)
    after, through = 2345, ENTRIES - 1
    files = write_rows(spark, "message_version", log, after, through, tmp_path)
    assert positions(files) == [each for each in range(after + 1, through + 1) if each % 10 != 9]
    assert len(files) > 1
    assert write_rows(spark, "message_version", [], 0, 0, tmp_path) == []


def test_who_asks_for_one_channel_reads_a_few_row_groups(
    spark: "SparkSession", log: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And who asks for a range of positions still opens only the files that have some of it."""
    monkeypatch.setattr(row_files, "SORTED_ROWS", ENTRIES // FILES)
    monkeypatch.setattr(parquet_file, "SORTED_ROWS", ENTRIES // FILES)
    monkeypatch.setattr(parquet_file, "SORTED_GROUP_BYTES", 8 * 1024)
    monkeypatch.setattr(parquet_file, "_BATCH_ROWS", 50)
    lake = Lake(tmp_path / "lake")
    folder = lake.new_folder("message_version")
    files = write_rows(spark, "message_version", log, 0, ENTRIES, folder)
    lake.append_files("message_version", files, ENTRIES, {}, lambda: None)
    whole = DeltaTable(lake.path("message_version")).to_pyarrow_dataset()
    fragments = list(whole.get_fragments())
    groups = sum(fragment.num_row_groups for fragment in fragments)
    one = (field("app_id") == "app") & (field("channel") == "room-7")
    read = sum(len(fragment.subset(one).row_groups) for fragment in fragments)
    assert len(fragments) == FILES
    assert groups >= 15 * FILES
    assert FILES <= read <= 2 * FILES
    assert whole.to_table(filter=one).num_rows == ENTRIES // CHANNELS
    last = field("committed_id") > ENTRIES - ENTRIES // FILES
    assert len(list(whole.get_fragments(last))) == 1
    assert len(lake.files("message_version", after=ENTRIES - 5)) == 1


def test_files_that_are_joined_are_sorted_again(
    spark: "SparkSession", log: list[str], tmp_path: Path
) -> None:
    """Many small builds leave many small files; what they become is as good as one build."""
    lake = Lake(tmp_path / "lake")
    step = ENTRIES // 16
    for after in range(0, ENTRIES, step):
        folder = lake.new_folder("message_version")
        files = write_rows(spark, "message_version", log, after, after + step, folder)
        lake.append_files("message_version", files, after + step, {}, lambda: None)
    lake.compact("message_version")
    rows = [pq.read_table(file) for file in lake.files("message_version")]
    assert len(rows) < 16
    for each in rows:
        keys = each.select(["app_id", "channel", "committed_id"]).to_pylist()
        assert [tuple(key.values()) for key in keys] == sorted(tuple(key.values()) for key in keys)
    assert positions(list(map(Path, lake.files("message_version")))) == [
        each for each in range(1, ENTRIES + 1) if each % 10 != 9
    ]
