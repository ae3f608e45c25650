"""The class-data archive for real: too slow for every run, so `scripts/soak` does it."""

import json
import os
import subprocess
import sys
from pathlib import Path

START = """
import json
from tidelog.pipeline.spark.session import spark_session

told = []
spark = spark_session(notice=told.append)
bean = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
print(json.dumps({"told": told, "options": list(bean.getInputArguments())}))
"""


def test_the_second_start_builds_it_and_later_ones_use_it(tmp_path: Path) -> None:
    """The first goes without, the second says that it builds, the third uses the same file."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}

    def start() -> tuple[list[str], list[Path]]:
        done = subprocess.run(
            [sys.executable, "-c", START], env=environment, capture_output=True, check=True
        )
        said = json.loads(done.stdout.splitlines()[-1])
        name = "-XX:SharedArchiveFile="
        found = [each.removeprefix(name) for each in said["options"] if each.startswith(name)]
        return said["told"], [Path(file) for files in found for file in files.split(":")]

    assert start()[1] == []
    told, files = start()
    assert files
    assert any("building the archive" in text for text in told)
    assert all(file.is_file() for file in files)
    told, again = start()
    assert not any("building the archive" in text for text in told)
    assert again == files
