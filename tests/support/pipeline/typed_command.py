"""`tidelog pipeline` as somebody types it, in this process or in one that may not load Spark."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.pipeline.pipeline_process import END_SECONDS, completed
from tidelog.cli.main import main
from tidelog.pipeline.spark.class_archive import BUILDING_VARIABLE

NO_JVM = """
import sys
from tidelog.cli.main import main
sys.argv = ["tidelog", "pipeline", *sys.argv[1:]]
try:
    main()
finally:
    assert "py4j" not in sys.modules, "Spark was loaded"
"""


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """What it printed as JSON."""
        return json.loads(self.out)


Command = Callable[..., Ended]


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Command:
    """Run a command in this process; returns how it ended."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TIDELOG_")]:
        if name != BUILDING_VARIABLE:  # the second command would build an archive of classes
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["tidelog", "pipeline", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0, printed.out, printed.err)

    return run


def without_jvm(*arguments: str) -> Ended:
    """A command in a process of its own that may not load Spark."""
    command = [sys.executable, "-c", NO_JVM, *arguments]
    ended = completed(command, seconds=END_SECONDS, cwd=Path.cwd())
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def refused(ended: Ended, code: int, *words: str) -> None:
    """It said these words in one line of standard error, and nothing else."""
    assert ended.code == code, ended
    assert ended.out == ""
    [line] = ended.err.splitlines()
    assert line.startswith("tidelog: ")
    for word in words:
        assert word in line
