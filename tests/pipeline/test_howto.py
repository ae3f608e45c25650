"""The how-to of the pipeline: its programs, its commands and its notebook, as printed."""

import contextlib
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from support.pipeline_process import RUN_SECONDS, completed
from tidelog.testing.process import ServerProcess

HOWTO = Path(__file__).parents[2] / "docs/howto/ask-your-log.md"
REFERENCE = Path(__file__).parents[2] / "docs/pipeline.md"


def test_a_question_is_answered_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands run, and every cell of the notebook prints what is below it."""
    text = HOWTO.read_text(encoding="utf-8")
    fill, *cells = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    serve, commands = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    printed = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    assert len(cells) == len(printed) == 4
    (tmp_path / "fill.py").write_text(fill, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    arguments = tuple(serve.split()[2:])
    with ServerProcess(data_dir=tmp_path / "data", arguments=arguments) as server:
        server.start()
        script = commands.replace("8080", str(server.port))
        ended = completed(
            ["bash", "-e", "-c", script],
            seconds=RUN_SECONDS,
            cwd=tmp_path,
            environment={"PATH": path},
        )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 of 1 messages" in ended.stdout
    assert (tmp_path / "data/lake/report.html").is_file()
    names: dict[str, Any] = {}
    for cell, expected in zip(cells, printed, strict=True):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(cell, str(HOWTO), "exec"), names)
        assert [line.rstrip() for line in output.getvalue().splitlines()] == [
            line.rstrip() for line in expected.splitlines()
        ]
    [reading] = re.findall(r"```python\n(.*?)```", REFERENCE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(reading, str(REFERENCE), "exec"), names)
    assert set(names["messages"]["state"]) == {"visible"}
