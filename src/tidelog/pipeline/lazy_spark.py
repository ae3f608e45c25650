"""A session of Spark that starts when somebody needs it: what is small is done without a JVM."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias, Union

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Spark: TypeAlias = Union["SparkSession", "LazySpark"]
"""What a function takes that may need a session, or not."""


class LazySpark:
    """Starts a session the first time that it is asked for; threads may ask at the same time."""

    def __init__(self, start: Callable[[], "SparkSession"], *, is_local: bool) -> None:
        """Nothing is started yet.

        Args:
            start: Starts it.
            is_local: Whether it is of this machine.
        """
        self.is_local = is_local
        self.start_seconds = 0.0
        """How long that took, if it was started."""
        self._start = start
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._wishes: list[Callable[[SparkSession], None]] = []

    @property
    def is_started(self) -> bool:
        """Whether anybody has needed it."""
        return self._session is not None

    def session(self) -> "SparkSession":
        """The session, started if it was not yet."""
        with self._lock:
            if self._session is None:
                began = time.monotonic()
                self._session = self._start()
                self.start_seconds = time.monotonic() - began
                for wish in self._wishes:
                    wish(self._session)
            return self._session

    @contextmanager
    def wishing(self, wish: "Callable[[SparkSession], None]") -> Iterator[None]:
        """Do something with the session: now, or if it starts before the block ends."""
        with self._lock:
            if self._session is None:
                self._wishes.append(wish)
            else:
                wish(self._session)
        try:
            yield
        finally:
            with self._lock:
                if wish in self._wishes:
                    self._wishes.remove(wish)


def session_of(spark: Spark) -> "SparkSession":
    """The session itself, for what needs one."""
    return spark.session() if isinstance(spark, LazySpark) else spark


def is_local(spark: Spark) -> bool:
    """Whether a session is of this machine."""
    if isinstance(spark, LazySpark):
        return spark.is_local
    return str(spark.sparkContext.master).startswith("local")


@contextmanager
def with_settings(spark: Spark, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings that a session has for the length of a block, if it is needed there."""
    before: dict[str, str | None] = {}

    def put(session: "SparkSession") -> None:
        for name, value in settings.items():
            before[name] = session.conf.get(name, None)
            session.conf.set(name, value)

    lazy = spark if isinstance(spark, LazySpark) else LazySpark(lambda: spark, is_local=True)
    if lazy is not spark:
        lazy.session()
    try:
        with lazy.wishing(put):
            yield
    finally:
        for name, known in before.items():
            if known is None:
                lazy.session().conf.unset(name)
            else:
                lazy.session().conf.set(name, known)
