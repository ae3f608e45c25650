"""Where a server's CPU goes, by part of an operation: for the benches, and never in production.

The server of a bench is started by this module: `python -m by_part serve ...` is `tidelog serve`
in a process that a timer of its own CPU time (`ITIMER_PROF`) interrupts at every tick of the
kernel, 4 ms on most. What its main thread has used since the last tick counts for the part that it
is in: that of the innermost function which the tables below know, so what a function calls that
they do not (msgspec, hashlib, SQLite, a socket) is its caller's. The sums are in a file that the
bench reads before and after a load. A tick costs some microseconds of 4,000.

`loop` is what no function of ours is part of: polling, reading sockets and waking up. `threads` is
what all other threads have used. With few operations the small parts are guesses: a second of CPU
is 250 ticks, so a part of 10 % is then right within 2 % of the whole in two cases of three.

`TIDELOG_BENCH_PARTS=off` starts plain servers: `before_after.py` compares without the ticks.
"""

import mmap
import os
import runpy
import signal
import statistics
import struct
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tidelog.testing.process import ServerProcess

PARTS = ("parse", "verify", "decide", "commit", "encode", "write", "pass", "loop", "threads")
"""`parse`: frames, requests and JSON. `verify`: signatures, tokens, fingerprints, schemas.
`decide`: rules, their states, positions and digests. `commit`: the committer and the store.
`encode`: answers, frames, versions. `write`: to sockets. `pass`: what brings it from one to the
next, such as routes, connections and the link."""

FUNCTIONS = {
    "mesh/protocol/fingerprint.py:fingerprint": "verify",
    "mesh/protocol/fingerprint.py:preimage": "verify",
    "mesh/protocol/session.py:ack": "encode",
    "sync/front/service.py:_broadcast": "encode",
    "sync/protocol/wire.py:raw_events": "parse",
}
"""Functions of another part than their file, as file and name."""

MODULES = {
    "base/": "pass",
    "base/data/canonical.py": "verify",
    "base/data/digest.py": "decide",
    "base/data/seal.py": "commit",
    "base/data/strictjson.py": "parse",
    "base/net/frame.py": "encode",
    "channels/": "pass",
    "channels/decide/": "decide",
    "channels/protocol/": "parse",
    "channels/protocol/capabilities.py": "verify",
    "channels/protocol/frames.py": "encode",
    "channels/protocol/signatures.py": "verify",
    "channels/protocol/tokens.py": "verify",
    "channels/protocol/version.py": "encode",
    "channels/protocol/wire.py": "encode",
    "link/": "pass",
    "log/": "decide",
    "log/committer.py": "commit",
    "log/tail.py": "pass",
    "mesh/": "pass",
    "mesh/decide/": "decide",
    "mesh/protocol/": "parse",
    "mesh/protocol/identity.py": "verify",
    "mesh/protocol/replies.py": "encode",
    "mesh/upkeep/limiter.py": "decide",
    "store/": "commit",
    "sync/": "pass",
    "sync/decide/": "decide",
    "sync/protocol/": "parse",
    "sync/protocol/form.py": "encode",
    "sync/protocol/items.py": "verify",
    "sync/protocol/profiles.py": "verify",
    "sync/protocol/tokens.py": "verify",
    "sync/protocol/tree.py": "decide",
    "sync/protocol/wire.py": "encode",
    "web/": "pass",
    "web/fanout.py": "write",
    "web/http.py": "parse",
    "web/reader.py": "parse",
    "web/websocket.py": "parse",
}
"""Files and folders of the package; the longest that fits counts."""

TICK_SECONDS = 0.001
"""As often as the kernel has ticks, if it has fewer."""

_FILE = "TIDELOG_BENCH_PARTS_FILE"
_TOTALS = struct.Struct(f"{len(PARTS)}d")
_IS_OFF = os.environ.get("TIDELOG_BENCH_PARTS") == "off"


def part_of(code: CodeType) -> str | None:
    """The part that a function belongs to; None if that is its caller's to say."""
    _, mark, name = code.co_filename.rpartition("/tidelog/")
    if not mark:
        return None
    if found := FUNCTIONS.get(f"{name}:{code.co_name}"):
        return found
    fitting = [each for each in MODULES if name.startswith(each)]
    return MODULES[max(fitting, key=len)] if fitting else None


class _Sampler:
    """Counts what this process uses, from now on."""

    def __init__(self, totals: "memoryview[float]") -> None:
        self._totals = totals
        self._known: dict[CodeType, int] = {}
        """Number of the part of each function that was met; -1 if it has none."""
        self._main, self._all = time.thread_time(), time.process_time()

    def tick(self, signal_number: int, frame: FrameType | None) -> None:
        """What was used since the last tick belongs to the part that this is in."""
        del signal_number
        main, everything = time.thread_time(), time.process_time()
        used = main - self._main
        self._totals[self._part(frame)] += used
        self._totals[PARTS.index("threads")] += max(0.0, everything - self._all - used)
        self._main, self._all = main, everything

    def _part(self, frame: FrameType | None) -> int:
        while frame is not None:
            code = frame.f_code
            number = self._known.get(code)
            if number is None:
                name = part_of(code)
                number = self._known[code] = -1 if name is None else PARTS.index(name)
            if number >= 0:
                return number
            frame = frame.f_back
        return PARTS.index("loop")


class SampledServer(ServerProcess):
    """A `ServerProcess` that tells where its CPU goes."""

    program = "tidelog" if _IS_OFF else "by_part"

    def __init__(self, *, environment: Mapping[str, str] | None = None, **options: Any) -> None:
        self._totals = tempfile.NamedTemporaryFile(prefix="tidelog-bench-parts-")  # noqa: SIM115
        self._totals.write(bytes(_TOTALS.size))
        self._totals.flush()
        path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        super().__init__(
            environment={
                **(environment or {}),
                "PYTHONPATH": os.pathsep.join(filter(None, path)),
                _FILE: self._totals.name,
            },
            **options,
        )

    def seconds_by_part(self) -> dict[str, float]:
        """What each part has used so far."""
        values = _TOTALS.unpack(Path(self._totals.name).read_bytes())
        return dict(zip(PARTS, values, strict=True))


class PartMeter:
    """CPU of an operation by part, over a block; nothing if servers are not sampled."""

    def __init__(self, server: Any) -> None:
        """`server` may also be a plain one, whose parts nobody knows."""
        self._server = server if isinstance(server, SampledServer) and not _IS_OFF else None
        self.start()

    def start(self) -> None:
        """Begin."""
        self._before = self._server.seconds_by_part() if self._server else {}

    def stop(self, operations: int) -> dict[str, Any]:
        """What each part used for one of the operations, under the name it has in a document."""
        if self._server is None:
            return {}
        used = self._server.seconds_by_part()
        return {
            "cpu_us_by_part": {
                part: round((used[part] - self._before[part]) / operations * 1e6, 1)
                for part in PARTS
            }
        }


def medians(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of the parts of several rounds, each part's; nothing if they were not sampled."""
    found = [one["cpu_us_by_part"] for one in rounds if "cpu_us_by_part" in one]
    if not found:
        return {}
    middle = {part: round(statistics.median(one[part] for one in found), 1) for part in PARTS}
    return {"cpu_us_by_part": middle}


def main() -> None:
    """`tidelog`, sampled."""
    with Path(os.environ[_FILE]).open("r+b") as file:
        totals = memoryview(mmap.mmap(file.fileno(), _TOTALS.size)).cast("d")
    signal.signal(signal.SIGPROF, _Sampler(totals).tick)
    signal.setitimer(signal.ITIMER_PROF, TICK_SECONDS, TICK_SECONDS)
    runpy.run_module("tidelog", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
