"""`tidelog pipeline run --every`: rounds of the whole pipeline, in one process with one session.

A round brings everything up to the head of the log and checks it; one with nothing new looks at a
few rows and needs no Spark. What may heal by itself ends the round alone: the store or the cluster
cannot be reached, another process writes to the lake. What cannot ends the service, and so does a
finding of a check: somebody has to look.
"""

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.base.errors import ConfigError, TidelogError

if TYPE_CHECKING:
    from tidelog.cli.pipeline.workspace import Workspace
    from tidelog.pipeline.checks.finding import Verdict
    from tidelog.pipeline.lazy_spark import LazySpark

Steps = Callable[["LazySpark"], Iterator[tuple[str, Any]]]
"""What a round does, one step after another: the name of each, and what came of it."""

LONGEST_IDLE_SECONDS = 3600.0
"""After so long without anything new, a round does everything: a check examines something old."""

REPORT_SECONDS = 3600.0
"""How often the page is written: it is looked at by people."""

_PAUSE_SECONDS = 0.5
"""Between two rounds at least: whoever else wants to write to the lake comes in then."""

_LOOK_SECONDS = 1.0
"""How often a service that waits for the lake looks whether it is to end."""

_UNITS = {"s": 1, "m": 60, "h": 3600}


class Round(NamedTuple):
    """What became of one round."""

    number: int
    began_at: str
    seconds: float
    is_idle: bool
    """There was nothing new."""
    results: dict[str, Any]
    """By step, in the words of `Steps`; not all of them if it was told to end or failed."""
    error: str = ""
    """Why it failed, and what to do."""

    @property
    def verdicts(self) -> "list[Verdict]":
        """What the checks said, as far as they ran."""
        return list(self.results.get("checks", ()))

    @property
    def has_findings(self) -> bool:
        """Whether a check found something; what could not be compared may be so the next time."""
        return any(verdict.total for verdict in self.verdicts)


def seconds_of(text: str) -> float:
    """A time such as `60s`, `5m` or `1h`.

    Raises:
        ConfigError: it is none, or none that makes sense.
    """
    found = re.fullmatch(r"([0-9]{1,6}(?:[.][0-9]{1,3})?)([smh]?)", text)
    seconds = float(found[1]) * _UNITS[found[2] or "s"] if found else 0.0
    if not 1 <= seconds <= 24 * 3600:
        raise ConfigError(f"--every {text}: give a time from 1s to 24h, such as 60s, 5m or 1h")
    return seconds


class Service:
    """Rounds, until it is told to end."""

    def __init__(
        self,
        workspace: "Workspace",
        session: Callable[[], AbstractContextManager["LazySpark"]],
        conf: Sequence[tuple[str, str]],
        steps: Steps,
        report: Callable[[], Any],
        tell: Callable[[Round], None],
        notice: Callable[[str], None],
    ) -> None:
        """Nothing is started yet.

        Args:
            workspace: Where the store and the lake are.
            session: Starts Spark when a round needs it.
            conf: Settings of Spark that somebody asked for.
            steps: What a round does, with that session.
            report: Writes the page.
            tell: Called after each round.
            notice: Told what it waits for.
        """
        self._workspace = workspace
        self._session = _Session(session, conf)
        self._steps = steps
        self._report = report
        self._tell = tell
        self._notice = notice
        self._worked_at = self._reported_at = float("-inf")

    def run(self, every_seconds: float, stop: threading.Event) -> bool:
        """Rounds until `stop` is set or a check finds something; returns whether all was sound.

        Raises:
            TidelogError: it cannot go on until somebody has done something.
        """
        from tidelog.pipeline.spark.failure import explained

        number = 0
        with self._session:
            while not stop.is_set():
                number += 1
                began, began_at = time.monotonic(), _now()
                results: dict[str, Any] = {}
                error, is_usable = "", True
                try:
                    is_idle = self._round(results, stop)
                except Exception as raised:
                    meant = explained(raised)
                    if meant is None or is_lasting(meant):
                        raise
                    is_idle, error = False, str(meant)
                    if not (is_usable := self._session.is_usable()):
                        error += " Spark has ended and is started again."
                seconds = round(time.monotonic() - began, 3)
                done = Round(number, began_at, seconds, is_idle, results, error)
                self._tell(done)
                if done.has_findings:
                    return False
                stop.wait(max(_PAUSE_SECONDS, every_seconds - seconds))
                if not is_usable and not stop.is_set():
                    _begin_again()
        return True

    def _round(self, results: dict[str, Any], stop: threading.Event) -> bool:
        """Do what is to be done; returns whether it was nothing."""
        workspace = self._workspace
        with self._writing(stop):
            if stop.is_set():
                return True
            workspace.require_same_log()
            head = workspace.store.head().committed_id
            is_long_ago = time.monotonic() - self._worked_at > LONGEST_IDLE_SECONDS
            if not head or not (is_long_ago or workspace.is_anything_new()):
                return True
            with self._session.for_round(head - workspace.lake.through("log")) as spark:
                for name, result in self._steps(spark):
                    results[name] = result
                    if stop.is_set():
                        return False
            self._worked_at = time.monotonic()
        if time.monotonic() - self._reported_at > REPORT_SECONDS:
            results["report"] = self._report()
            self._reported_at = time.monotonic()
        return False

    @contextlib.contextmanager
    def _writing(self, stop: threading.Event) -> Iterator[None]:
        """The right to write to the lake, for which it waits, unless it is told to end."""
        from tidelog.pipeline.lake.errors import LakeLocked

        is_told = False
        with ExitStack() as held:
            while not stop.is_set():
                try:
                    held.enter_context(self._workspace.lake.writing(wait_seconds=_LOOK_SECONDS))
                    break
                except LakeLocked as error:
                    if not is_told:
                        self._notice(f"waiting: {error}")
                    is_told = True
            yield


class _Session:
    """The session of Spark, from the first round that needs it."""

    def __init__(
        self,
        opened: Callable[[], AbstractContextManager["LazySpark"]],
        conf: Sequence[tuple[str, str]],
    ) -> None:
        self._opened = opened
        self._conf = conf
        self._lazy: LazySpark | None = None
        self._held = ExitStack()

    def __enter__(self) -> None:
        """It is not started yet."""

    def __exit__(self, *_raised: object) -> None:
        self._held.close()

    @contextlib.contextmanager
    def for_round(self, rows: int) -> "Iterator[LazySpark]":
        """The session, told about how many entries a round has as soon as it is needed."""
        from tidelog.pipeline.spark.session import fit_to

        if self._lazy is None:
            self._lazy = self._held.enter_context(self._opened())
        with self._lazy.wishing(lambda spark: fit_to(spark, rows, self._conf)):
            yield self._lazy

    def is_usable(self) -> bool:
        """Whether it, if it was started, still does something; its JVM may have been killed."""
        if self._lazy is None or not self._lazy.is_started:
            return True
        try:
            return self._lazy.session().range(1).count() == 1
        except Exception:  # noqa: BLE001 - whatever it is, it does not work
            return False


def is_lasting(error: TidelogError) -> bool:
    """Whether an error stays until somebody does something."""
    from tidelog.pipeline.lake.errors import LakeError, LakeLocked
    from tidelog.pipeline.source.store_address import LogReplaced
    from tidelog.pipeline.spark.jvm import NoJvm

    if isinstance(error, LakeLocked):
        return False
    return isinstance(error, LogReplaced | LakeError | ConfigError | NoJvm)


def _begin_again() -> None:
    """Become a new process of the same command: of a JVM that died, PySpark keeps what it knew."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - ourselves


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
