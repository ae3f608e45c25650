"""The how-to of the pipeline: its programs, its commands and its notebook, as printed."""

import re
from pathlib import Path
from typing import Any

import pytest

from support.docs.walk import Walk
from support.pipeline.pipeline_process import RUN_SECONDS
from tidelog.pipeline.spark.class_archive import BUILDING_VARIABLE

HOWTO = "docs/howto/ask-your-log.md"
REFERENCE = Path(__file__).parents[2] / "docs/pipeline.md"


def test_a_question_is_answered_as_printed(
    folder: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is a walk; what the reference says about reading works on the same lake."""
    environment = {BUILDING_VARIABLE: "-Xshare:auto"}  # an archive of classes would stay
    Walk(HOWTO, folder, free_port).run(RUN_SECONDS, environment)
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    [reading] = re.findall(r"```python\n(.*?)```", REFERENCE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(reading, str(REFERENCE), "exec"), names)
    assert set(names["messages"]["state"]) == {"visible"}
