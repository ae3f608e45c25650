"""The acts of the demo that write, against a real server."""

import asyncio
import json
import os
import re
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.cli.command import run
from tidelog.base.errors import TidelogError
from tidelog.config.settings import DEVELOPMENT_ADMIN_TOKEN
from tidelog.demo.acts import pipeline
from tidelog.demo.narration import Claim
from tidelog.demo.stage import Stage
from tidelog.demo.tour import play_surfaces

KILL = re.compile(r"kill -9 .* has (\d+) of the (\d+); .* the other (\d+)")
WAIT = re.compile(r"acknowledged (\d+) before it died, (\d+) wait")


class Notes:
    """Keeps what is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.shown: list[Mapping[str, str]] = []

    def act(self, title: str, promise: str) -> None:
        """Noted."""
        self.said.append(f"{title}: {promise}")

    def say(self, text: str) -> None:
        """Noted."""
        self.said.append(text)

    def show(self, panes: Mapping[str, str]) -> None:
        """Noted."""
        self.shown.append(panes)

    def proved(self, claim: Claim) -> None:
        """Noted."""
        self.said.append(claim.promise)

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Noted."""
        self.said.append(text)
        yield


class Tour(NamedTuple):
    """What one tour without the pipeline proved, told and wrote."""

    claims: list[Claim]
    notes: Notes
    written: list[tuple[str, str, object]]

    def words(self) -> list[object]:
        """What was said in channels."""
        return [content for surface, _, content in self.written if surface == "channels"]


def play(home: Path, seed: int) -> Tour:
    """One tour."""
    notes = Notes()
    with Stage(home, port=0) as stage:
        claims = asyncio.run(play_surfaces(stage, notes, seed))
    with closing(sqlite3.connect(stage.data_dir / "tidelog.db")) as log:
        rows = log.execute("SELECT stream, kind, body, data FROM log ORDER BY committed_id")
        written = [
            (stream.partition("/")[0], kind, content(body, data))
            for stream, kind, body, data in rows
        ]
    return Tour(claims, notes, written)


def content(body: bytes, data: bytes | None) -> object:
    """What the author of an entry chose, without ids and times."""
    fields = json.loads(body)
    event = fields.get("event")
    return data or (event.get("payload") if event else fields.get("data"))


async def forked(stage: Stage, *arguments: str) -> str:
    """A command of a tour; the tour of `tests/packaging` starts them from nothing."""
    environment = {**os.environ, "TIDELOG_ADMIN_TOKEN": DEVELOPMENT_ADMIN_TOKEN}
    ended = await asyncio.to_thread(run, *arguments, cwd=stage.home, env=environment, check=True)
    return ended.stdout.strip()


def in_promised_order(tour: Tour) -> list[Any]:
    """What a tour wrote; a daemon brings each send once, and after a kill in any order."""
    mesh = [entry for entry in tour.written if entry[0] == "mesh"]
    return [entry for entry in tour.written if entry[0] != "mesh"] + sorted(mesh)


def test_a_seed_writes_the_same_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tours with one seed write the same and keep every promise; another writes other words."""
    monkeypatch.setattr(Stage, "tidelog", forked)
    with ThreadPoolExecutor(3) as tours:
        first, second, other = tours.map(play, [tmp_path / name for name in "abc"], [7, 7, 8])
    assert [claim.promise for claim in first.claims if not claim.holds] == []
    told = " ".join(first.notes.said)
    before, given, after = map(int, KILL.search(told).groups())  # type: ignore[union-attr]
    acknowledged, waiting = map(int, WAIT.search(told).groups())  # type: ignore[union-attr]
    assert before + after == acknowledged + waiting == given, "the numbers add up for a reader"
    assert acknowledged <= before
    grown = [panes["browser (V2)"] for panes in first.notes.shown if "browser (V2)" in panes]
    assert len(set(grown)) > 10
    assert in_promised_order(second) == in_promised_order(first)
    assert other.words() != first.words()


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    """The tour never writes over what is there."""
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(TidelogError, match="not empty"):
        Stage(tmp_path)


async def test_a_pipeline_that_takes_too_long_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to do next."""
    sleeping = (sys.executable, "-c", "import time; time.sleep(600)")
    monkeypatch.setattr(pipeline, "own_program", lambda *_: sleeping)
    monkeypatch.setattr(pipeline, "RUN_SECONDS", 0.0)
    with pytest.raises(TidelogError, match=r"was not done after 0 s.*tidelog demo --no-pipeline"):
        await pipeline._run(Stage(tmp_path / "home"), Notes(), "pipeline", "run")
