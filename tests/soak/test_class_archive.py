"""The class-data archive for real: too slow for every run, so `scripts/soak` does it."""

import json
import os
import subprocess
import sys
from pathlib import Path

START = """
import json
from tidelog.pipeline.spark.class_archive import build_afterwards
from tidelog.pipeline.spark.jvm import find_jvm
from tidelog.pipeline.spark.session import spark_session

spark = spark_session()
bean = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
options = list(bean.getInputArguments())
spark.stop()
building = build_afterwards(find_jvm())
if building is not None:
    building.wait()
print(json.dumps({"is_built": building is not None, "options": options}))
"""


def test_the_second_command_has_it_built_and_later_ones_use_it(tmp_path: Path) -> None:
    """The first leaves it, the second has it built after its work, the third uses it."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}

    def start() -> tuple[bool, list[Path]]:
        done = subprocess.run(
            [sys.executable, "-c", START], env=environment, capture_output=True, check=True
        )
        said = json.loads(done.stdout.splitlines()[-1])
        name = "-XX:SharedArchiveFile="
        found = [each.removeprefix(name) for each in said["options"] if each.startswith(name)]
        return said["is_built"], [Path(file) for files in found for file in files.split(":")]

    assert start() == (False, [])
    assert start() == (True, [])
    is_built, files = start()
    assert not is_built
    assert files
    assert all(file.is_file() for file in files)
