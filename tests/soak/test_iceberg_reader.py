"""ClickHouse, which has a reader of Iceberg of its own, reads what the lake says in that format.

It is half a gigabyte, so it is installed here, for this test alone.
"""

import json
import subprocess
import sys
from pathlib import Path

from support.pipeline.plain_rows import written
from tidelog.pipeline.lake.iceberg import describe
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.tables import TABLES

QUERY = """
import sys, chdb
for path in sys.argv[1:]:
    rows = chdb.query(f"SELECT * FROM icebergLocal('{path}/')", "JSONEachRow")
    print(rows.bytes().decode().strip())
"""


def test_clickhouse_reads_every_table(tmp_path: Path) -> None:
    """It finds every row with every column, and none of a file that was replaced."""
    lake = Lake(tmp_path / "lake")
    for table in TABLES:
        lake.overwrite_files(table.name, [written(lake, table.name, 1)], 1)
        lake.overwrite_files(table.name, [written(lake, table.name, 2, 3)], 3)
    found = describe(lake)
    uv, python = Path(sys.executable).with_name("uv"), tmp_path / "reader" / "bin" / "python"
    subprocess.run([uv, "venv", "--quiet", tmp_path / "reader"], check=True)
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, "chdb"], check=True)
    paths = [str(Path(each.metadata).parent.parent) for each in found]
    said = subprocess.run(
        [python, "-c", QUERY, *paths],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",  # it reads only what is below
    ).stdout
    rows = [list(json.loads(line)) for line in said.splitlines()]
    assert rows == [[c.name for c in table.columns] for table in TABLES for _ in range(2)]
