"""`run --every`: when a round begins, what ends one and what ends the service.

What the steps do is tested with the commands; here they are counted, made to fail and interrupted.
"""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.log.log_writer import draft, write_log
from tidelog.base.errors import ConfigError, StoreUnavailable
from tidelog.cli.pipeline.service import Round, Service, seconds_of
from tidelog.cli.pipeline.workspace import Workspace
from tidelog.config.settings import Settings
from tidelog.pipeline.checks.finding import Finding, Verdict
from tidelog.pipeline.lake.errors import LakeDamaged
from tidelog.pipeline.lake.lake import Lake
from tidelog.pipeline.lazy_spark import LazySpark
from tidelog.pipeline.source.store_address import LogReplaced, StoreAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_SECONDS = 90.0
SOUND = Verdict("digest", 1, 1)
EVERY = 0.01

HOLD = """
import sys
from pathlib import Path
from tidelog.pipeline.lake.lake import Lake
with Lake(Path(sys.argv[1])).writing():
    print("mine", flush=True)
    sys.stdin.read()
"""


class Rounds:
    """A service of which a test says what each round does; it ends after the last."""

    def __init__(self, spark: "SparkSession", folder: Path, entries: int = 3) -> None:
        location = str(folder / "tidelog.db")
        write_log(location, [draft(n) for n in range(entries)])
        self.workspace = Workspace(Settings(), Lake(folder / "lake"), StoreAddress(location))
        self.stop = threading.Event()
        self.told: list[Round] = []
        self.notices: list[str] = []
        self.sessions = 0
        self._spark = spark

    def run(self, *rounds: Callable[[], list[Verdict]], until: int | None = None) -> bool:
        """Do these, one after another, and stop after so many."""
        left = iter(rounds)
        wanted = len(rounds) if until is None else until

        def start() -> "SparkSession":
            self.sessions += 1
            return self._spark

        def session() -> AbstractContextManager[LazySpark]:
            return nullcontext(LazySpark(start, is_local=True))

        def steps(spark: LazySpark) -> Iterator[tuple[str, Any]]:
            assert spark.session() is self._spark
            yield "ingest", {"rows": 0}
            yield "checks", next(left)()

        def tell(done: Round) -> None:
            self.told.append(done)
            if len(self.told) == wanted:
                self.stop.set()

        service = Service(self.workspace, session, (), steps, dict, tell, self.notices.append)
        return service.run(EVERY, self.stop)


@pytest.fixture
def rounds(spark: "SparkSession", tmp_path: Path) -> Rounds:
    """On a store of its own."""
    return Rounds(spark, tmp_path)


def sound() -> list[Verdict]:
    """A round in which all is well."""
    return [SOUND]


def failing(error: Exception) -> Callable[[], list[Verdict]]:
    """A round that fails."""

    def fail() -> list[Verdict]:
        raise error

    return fail


def test_rounds_follow_each_other_in_one_session(rounds: Rounds) -> None:
    """Each does all steps, and is told; the first also writes the report."""
    assert rounds.run(sound, sound, sound)
    assert [done.number for done in rounds.told] == [1, 2, 3]
    assert [list(done.results) for done in rounds.told] == [
        ["ingest", "checks", "report"],
        ["ingest", "checks"],
        ["ingest", "checks"],
    ]
    assert rounds.sessions == 1


def test_what_may_heal_ends_only_the_round(rounds: Rounds) -> None:
    """The store is away for a moment: that is told, and the next round does its work."""
    away = StoreUnavailable("the store cannot be read: it is away. Start it.")
    assert rounds.run(sound, failing(away), failing(OSError(28, "No space left", "/lake")), sound)
    assert [done.error for done in rounds.told] == ["", str(away), "No space left: /lake", ""]
    assert rounds.told[3].verdicts == [SOUND]
    assert rounds.sessions == 1


@pytest.mark.parametrize(
    "error", [LogReplaced("it is another log"), LakeDamaged("table log"), ConfigError("setting")]
)
def test_what_cannot_heal_ends_the_service(rounds: Rounds, error: Exception) -> None:
    """Somebody has to do something, and an error says what."""
    with pytest.raises(type(error), match=str(error)):
        rounds.run(sound, failing(error), sound)
    assert len(rounds.told) == 1


def test_a_mistake_of_ours_is_not_hidden(rounds: Rounds) -> None:
    """What nobody can explain is raised with all that is known of it."""
    with pytest.raises(ZeroDivisionError):
        rounds.run(failing(ZeroDivisionError()), sound)


def test_a_finding_ends_the_service(rounds: Rounds) -> None:
    """A round that could not compare does not: it may the next time."""
    uncompared = Verdict("agreement", 0, 0, uncompared=("the server is away",))
    found = Verdict("digest", 3, 3, (Finding("chain", "entry 2", "is another one"),), 1)
    assert not rounds.run(lambda: [uncompared], lambda: [SOUND, found], sound)
    assert [done.has_findings for done in rounds.told] == [False, True]


def test_it_ends_after_the_step_under_way(rounds: Rounds) -> None:
    """The step is finished; the report of that round is not begun, and nothing else is."""

    def interrupted() -> list[Verdict]:
        rounds.stop.set()
        return [SOUND]

    assert rounds.run(interrupted, sound)
    [done] = rounds.told
    assert list(done.results) == ["ingest", "checks"]


def test_nothing_new_needs_no_session(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An empty log, and one with nothing new, cost a look."""
    monkeypatch.setattr(Workspace, "is_anything_new", lambda _self: False)
    monkeypatch.setattr("tidelog.cli.pipeline.service.LONGEST_IDLE_SECONDS", float("inf"))
    assert rounds.run(until=3)
    monkeypatch.undo()
    empty = Rounds(rounds._spark, tmp_path / "empty", entries=0)
    assert empty.run(until=2)
    for each in (rounds, empty):
        assert all(done.is_idle and not done.results for done in each.told)
        assert each.sessions == 0


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_lake_that_somebody_else_writes_to_is_waited_for(
    rounds: Rounds, *, is_ended: bool
) -> None:
    """However long that takes; it says so once, and can be told to end meanwhile."""
    ends: list[bool] = []
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(rounds.workspace.lake.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"mine\n"
        thread = threading.Thread(target=lambda: ends.append(rounds.run(sound)))
        thread.start()
        while not rounds.notices:
            thread.join(0.1)
            assert thread.is_alive()
        if is_ended:
            rounds.stop.set()
            thread.join(WAIT_SECONDS)
        other.kill()
    thread.join(WAIT_SECONDS)
    assert ends == [True]
    assert [len(done.results) for done in rounds.told] == [0 if is_ended else 3]
    [notice] = rounds.notices
    assert "another process writes to the lake" in notice


@pytest.mark.parametrize(
    ("text", "seconds"), [("60s", 60), ("5m", 300), ("1h", 3600), ("90", 90), ("1.5s", 1.5)]
)
def test_a_time_has_a_unit(text: str, seconds: float) -> None:
    """Seconds, minutes or hours; without one, seconds."""
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "-5s", "5 m", "2d", "25h", "soon", "1e3", "٣s"])
def test_a_time_that_makes_no_sense_is_refused(text: str) -> None:
    """The error shows what can be given."""
    with pytest.raises(ConfigError, match="such as 60s, 5m or 1h"):
        seconds_of(text)
