"""`kill -9` of executors, again and again: every entry is in the table exactly once.

That others take their place is also seen by `tests/pipeline/test_engines.py`, after one kill.
"""

import os
import time
from pathlib import Path

from support.log.log_writer import draft, live_writer, read_log, write_log
from support.pipeline.pipeline_process import RUN_SECONDS, pipeline_process
from support.pipeline.spark_cluster import spark_cluster
from tidelog.pipeline.fill.ingest import catch_up
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.source.store_address import StoreAddress
from tidelog.store.rows import Entry

KILLS = max(1, int(os.environ.get("TIDELOG_TEST_SOAK_KILLS", "0")))
"""Of all executors; `scripts/soak --kills` raises it."""


def test_executors_that_die_leave_every_entry_once(tmp_path: Path) -> None:
    """They are killed again and again while a follower brings what a writer commits."""
    location, log = str(tmp_path / "tidelog.db"), tmp_path / "follow.log"
    lake = Lake(tmp_path / "lake")
    write_log(location, [draft(n) for n in range(50)])
    arguments = ["ingest", "--follow", "--store", location, "--lake", str(lake.root)]

    def has_grown(than: int) -> bool:
        """Wait until the table has more than that."""
        deadline = time.monotonic() + RUN_SECONDS
        while lake.through("log") <= than and time.monotonic() < deadline:
            time.sleep(0.1)
        return lake.through("log") > than

    (tmp_path / "cluster").mkdir()
    with (
        spark_cluster(tmp_path / "cluster") as cluster,
        live_writer(location, tmp_path / "enough"),
        pipeline_process(*arguments, *cluster.options(), log=log) as process,
    ):
        for _ in range(KILLS):
            grown = has_grown(lake.through("log"))
            assert grown, log.read_text(errors="replace")[-4000:] + cluster.log_text()
            while not cluster.kill_executors():  # what the last ones had read was still written
                assert process.poll() is None, log.read_text(errors="replace")[-4000:]
                time.sleep(0.1)
        assert has_grown(lake.through("log")), log.read_text(errors="replace")[-4000:]
        process.terminate()
        assert process.wait(RUN_SECONDS) == 0, log.read_text(errors="replace")[-4000:]
    assert catch_up(StoreAddress(location), lake)
    entries = [Entry(**row) for row in lake.arrow("log").sort_by("committed_id").to_pylist()]
    assert entries == read_log(location)
