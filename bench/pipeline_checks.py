"""What checks cost: of everything, and of 1,000 new entries with an old range, on the same lake.

Prints JSON. The lake is made first, and is not measured. That entries are new is made so by noting
that the checks were sound up to the entry before them.

  .venv/bin/python bench/pipeline_checks.py --entries 200000
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline_parts.logs import log_of
from tidelog.pipeline.checks.run import run_checks
from tidelog.pipeline.fill.derived_tables import build
from tidelog.pipeline.fill.ingest import ingest
from tidelog.pipeline.fill.sync_model import model_in_use
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lake.parquet_file import write_parquet
from tidelog.pipeline.search.index_build import update_index
from tidelog.pipeline.source.store_address import StoreAddress
from tidelog.pipeline.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.pipeline.checks.finding import Verdict


def main() -> None:
    """See the head of the module."""
    parser = argparse.ArgumentParser(description="What checks cost by range.")
    parser.add_argument("--entries", type=int, default=200_000)
    parser.add_argument("--new", type=int, default=1_000)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/tidelog-bench-pipeline"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    address = StoreAddress(str(log_of(options.folder, options.entries)))
    spark = spark_session(rows=options.entries)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        lake = Lake(Path(folder) / "lake")
        with lake.writing():
            ingest(spark, address, lake)
            build(spark, lake, address)
            update_index(spark, lake)
            found = {
                "full, the first": measured(spark, address, lake, full=True),
                "full": measured(spark, address, lake, full=True),
            }
            take_back(lake, address, options.new)
            found["new"] = measured(spark, address, lake)
            found["nothing new"] = measured(spark, address, lake)
    spark.stop()
    cores = os.cpu_count()
    load = os.getloadavg()[0]
    print(
        json.dumps(
            {
                "entries": options.entries,
                "new entries": options.new,
                "cores": cores,
                "load": load,
                **found,
            }
        )
    )


def measured(
    spark: "SparkSession", address: StoreAddress, lake: Lake, *, full: bool = False
) -> dict[str, Any]:
    """Run all checks; how long that took, and what they examined."""
    began = time.perf_counter()
    model = model_in_use(address, None)
    told: dict[str, float] = {}

    def note(verdict: "Verdict") -> None:
        told[verdict.check] = round(time.perf_counter() - began, 1)

    verdicts = run_checks((), spark, address, lake, model=model, full=full, seed=1, told=note)
    assert all(verdict.is_sound for verdict in verdicts), [str(each) for each in verdicts]
    return {
        "seconds": round(time.perf_counter() - began, 1),
        "seconds until each verdict": told,
        "examined": {verdict.check: verdict.examined for verdict in verdicts},
        "ranges": [str(each) for each in verdicts[0].ranges],
    }


def take_back(lake: Lake, address: StoreAddress, entries: int) -> None:
    """Note that the last entries were not examined yet."""
    rows = lake.arrow("verdict")
    begin = lake.through("log") - entries
    digest = address.entry_digest_at(begin)
    assert digest is not None
    changed = [
        row | {"sound_through": begin, "covered": begin, "digest": digest.hex()}
        for row in rows.to_pylist()
    ]
    file = lake.new_folder("verdict") / "verdict.parquet"
    write_parquet(file, rows.schema, pa.Table.from_pylist(changed, rows.schema).to_batches())
    lake.overwrite_files("verdict", [file], lake.through("verdict"))


if __name__ == "__main__":
    main()
