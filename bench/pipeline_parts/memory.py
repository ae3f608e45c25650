"""The most memory that this process and all it started had at once."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

_LOOK_SECONDS = 0.1


class Peak:
    """Megabytes, of the whole family of processes; shared pages count once for each."""

    megabytes = 0


@contextmanager
def peak_memory() -> Iterator[Peak]:
    """Look at it until the block ends."""
    peak, enough = Peak(), threading.Event()
    own = psutil.Process()

    def look() -> None:
        while not enough.wait(_LOOK_SECONDS):
            total = 0
            for process in (own, *own.children(recursive=True)):
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            peak.megabytes = max(peak.megabytes, total // 2**20)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        enough.set()
        thread.join()
