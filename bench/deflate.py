"""Size and CPU of a compressed frame: our small window against zlib's default.

Each message is compressed by itself, so that one frame serves every receiver; a compressor is made
for each of them. The frame is that of a token stream; `inflate` is
what a message of the same size costs that a client has compressed.

Run: python bench/deflate.py
"""

import json
import os
import platform
import time
import timeit
import zlib
from collections.abc import Callable
from typing import Any

from msgspec import Raw

from tidelog.base.net.frame import payload_of, text_frame
from tidelog.channels.protocol.verbs import APPEND
from tidelog.channels.protocol.version import Projector, Version
from tidelog.web.deflate import deflated, inflated

LOOPS, REPEATS = 2000, 7
TOKEN = Version(
    message_id="01JD3Z5V7Q8M2N4P6R8T0W2Y4A",
    history_serial=17,
    name="ai-output",
    kind=APPEND,
    committed_id=1299,
    committed_at=1_794_870_423_499,
    delivery_serial=1234,
    message_serial="00000001794870420000:3fa9c1d2:00000000000000001234",
    data=Raw(b'"hello "'),
)


def best_us(call: Callable[[], object]) -> float:
    """CPU of the fastest of several runs, in microseconds per call: others were disturbed."""
    return round(
        min(timeit.repeat(call, number=LOOPS, repeat=REPEATS, timer=time.process_time))
        / LOOPS
        * 1e6,
        2,
    )


def by_default(payload: bytes) -> bytes:
    """The same message with the window and memory that zlib takes if it is not told."""
    compressor = zlib.compressobj(6, zlib.DEFLATED, -15)
    return compressor.compress(payload) + compressor.flush(zlib.Z_SYNC_FLUSH)


def main() -> None:
    """Print the figures with their conditions."""
    stream = "c9a8f2e1b7d64c3fa1e2d3c4b5a69788"
    frame = text_frame(Projector("3fa9c1d2").frame(TOKEN, "room-42", stream))
    payload = payload_of(frame)
    small = deflated(frame)
    figures: dict[str, Any] = {
        "figure": "deflate",
        "bytes": {
            "plain": len(frame),
            "ours": len(small),
            "by_default": len(by_default(payload)),
            "ratio": round(len(small) / len(frame), 3),
        },
        "us": {
            "ours": best_us(lambda: deflated(frame)),
            "by_default": best_us(lambda: by_default(payload)),
            "inflate": best_us(lambda: inflated(payload_of(small), 100_000)),
        },
        "conditions": {
            "loops": LOOPS,
            "repeats": REPEATS,
            "python": platform.python_version(),
            "zlib": zlib.ZLIB_RUNTIME_VERSION,
            "cpus": os.cpu_count(),
            "load": os.getloadavg()[0],
        },
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
