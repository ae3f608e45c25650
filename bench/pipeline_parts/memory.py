"""The most memory that a process and all it started had at once, and the time they used."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psutil

_LOOK_SECONDS = 0.5


class Memory(NamedTuple):
    """Megabytes; shared pages count once for each process."""

    driver: int = 0
    """The Python that runs the command."""
    jvm: int = 0
    """Driver of Spark, and locally also its executor."""
    workers: int = 0
    """Pythons that Spark started, together."""
    total: int = 0


class Peak:
    """The largest of each so far; not all of them need to have been at the same moment."""

    memory = Memory()
    cpu_seconds = 0.0
    """What all of them have used; a process that has just ended may be missing."""

    def look(self, root: psutil.Process) -> None:
        """Note what is there now."""
        driver = jvm = workers = 0
        used = 0.0
        for process in (root, *root.children(recursive=True)):
            try:
                size = process.memory_info().rss // 2**20
                name, times = process.name(), process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            used += times.user + times.system + times.children_user + times.children_system
            if process == root:
                driver += size
            elif name.startswith("java"):
                jvm += size
            else:
                workers += size
        self.cpu_seconds = max(self.cpu_seconds, used)
        now = Memory(driver, jvm, workers, driver + jvm + workers)
        self.memory = Memory(*map(max, zip(self.memory, now, strict=True)))


@contextmanager
def peak_memory(pid: int | None = None) -> Iterator[Peak]:
    """Look at this process or another one until the block ends."""
    peak, enough = Peak(), threading.Event()
    root = psutil.Process(pid)

    def look() -> None:
        while not enough.wait(_LOOK_SECONDS):
            try:
                peak.look(root)
            except psutil.NoSuchProcess:
                return

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        enough.set()
        thread.join()
