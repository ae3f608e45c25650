"""Tokens that come together: bytes on the wire and delay of `append_rollup_window` (channels 5.13).

The real server with SQLite, fsync on. Streams of 6-byte tokens are written at a steady rate, one
append for each; subscribers of every window follow all of them at the same time, on raw sockets.
Bytes are counted as they come from the socket, with the headers of WebSocket frames. A delay is
from the moment a request is written until the frame with its token was read. Prints one JSON
document.
"""

import argparse
import asyncio
import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from channels import (
    CONFIG,
    KEY,
    Meter,
    Sender,
    append_bytes,
    create_messages,
    quantiles,
)
from tidelog.testing.process import ServerProcess

TOKEN = "{number:05d} "
AIM_RATIO, AIM_LATE_MS = 0.5, 10


class Follower(asyncio.Protocol):
    """A V2 subscriber with a window: counts bytes and frames, and notes when each token came."""

    def __init__(self, window: int, channels: Sequence[str]) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.bytes = self.frames = self.tokens = 0
        self.arrived: dict[tuple[str, int], float] = {}
        self._window = window
        self._channels = channels
        self._buffer = b""
        self._subscribed = -1
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        """Upgrade."""
        self._transport = transport
        transport.write(
            f"GET /app/{KEY}?protocol=2&append_rollup_window={self._window} HTTP/1.1\r\n"
            "Host: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            "".encode()
        )

    def data_received(self, data: bytes) -> None:
        """Read frames."""
        now = time.perf_counter()
        self._buffer += data
        if self._subscribed < 0:
            head, mark, rest = self._buffer.partition(b"\r\n\r\n")
            if not mark:
                return
            assert head.startswith(b"HTTP/1.1 101"), head
            self._buffer, self._subscribed = rest, 0
            for channel in self._channels:
                asked = {"event": "sockudo:subscribe", "data": {"channel": channel}}
                payload = json.dumps(asked).encode()
                self._transport.write(bytes((0x81, 0x80 | len(payload))) + bytes(4) + payload)
        while len(self._buffer) >= 4:
            length, start = self._buffer[1], 2
            if length == 126:
                length, start = int.from_bytes(self._buffer[2:4], "big"), 4
            elif length == 127:
                length, start = int.from_bytes(self._buffer[2:10], "big"), 10
            if len(self._buffer) < start + length:
                return
            self._frame(self._buffer[start : start + length], start + length, now)
            self._buffer = self._buffer[start + length :]

    def _frame(self, payload: bytes, size: int, now: float) -> None:
        frame = json.loads(payload)
        if frame["event"] == "sockudo:message.append":
            self.bytes += size
            self.frames += 1
            text, channel = frame["data"], frame["channel"]
            for at in range(0, len(text), 6):
                self.tokens += 1
                self.arrived[channel, int(text[at : at + 5])] = now
        elif frame["event"].endswith("subscription_succeeded"):
            self._subscribed += 1
            if self._subscribed == len(self._channels):
                self.ready.set_result(None)

    def close(self) -> None:
        """Hang up."""
        self._transport.close()


class Pacer(Sender):
    """Sends the next request when it is due, and the last one was answered."""

    def __init__(self, requests: Sequence[bytes], first: float, interval: float) -> None:
        super().__init__(requests, None)
        self.sent: list[float] = []
        self._loop = asyncio.get_running_loop()
        self._first, self._interval = first, interval

    def go(self) -> None:
        """Wait until it is time."""
        due = self._first + len(self.sent) * self._interval
        self._loop.call_at(max(due, self._loop.time()), self._go)

    def _go(self) -> None:
        self.sent.append(time.perf_counter())
        super().go()


async def measure(
    port: int, meter: Meter, chosen: argparse.Namespace, windows: Sequence[int], name: str
) -> dict[str, Any]:
    """Write streams while subscribers of all these windows follow."""
    loop = asyncio.get_running_loop()
    channels = [f"rollup-{name}-{number}" for number in range(chosen.streams)]
    serials = await create_messages(port, channels)
    followers: dict[int, list[Follower]] = {}
    for window in windows:
        for _ in range(chosen.subscribers):
            _, follower = await loop.create_connection(
                lambda window=window: Follower(window, channels),  # type: ignore[misc]
                *("127.0.0.1", port),
            )
            await follower.ready
            followers.setdefault(window, []).append(follower)
    interval = 1 / chosen.rate
    pacers: list[Pacer] = []
    for number, (channel, serial) in enumerate(zip(channels, serials, strict=True)):
        work = [append_bytes(channel, serial, TOKEN.format(number=n)) for n in range(chosen.tokens)]
        first = loop.time() + 0.5 + interval * number / len(channels)
        _, pacer = await loop.create_connection(
            lambda work=work, first=first: Pacer(work, first, interval),  # type: ignore[misc]
            *("127.0.0.1", port),
        )
        pacers.append(pacer)
    meter.start()
    for pacer in pacers:
        pacer.go()
    await asyncio.gather(*(pacer.done for pacer in pacers))
    expected = chosen.streams * chosen.tokens
    deadline = time.perf_counter() + 10
    everybody = [follower for each in followers.values() for follower in each]
    while any(each.tokens < expected for each in everybody) and time.perf_counter() < deadline:  # noqa: ASYNC110 - protocols count
        await asyncio.sleep(0.005)
    cost = meter.stop(expected)
    figures: dict[str, Any] = {"server_cpu_us_per_token": cost["server_cpu_us_each"]}
    for window, each in followers.items():
        first_follower = each[0]
        delays = [
            first_follower.arrived[channel, number] - at
            for channel, pacer in zip(channels, pacers, strict=True)
            for number, at in enumerate(pacer.sent[: chosen.tokens])
        ]
        figures[f"window_{window}"] = {
            "delivered": sum(follower.tokens for follower in each),
            "expected": expected * len(each),
            "bytes_per_token": round(sum(f.bytes for f in each) / (expected * len(each)), 1),
            "tokens_per_frame": round(expected * len(each) / sum(f.frames for f in each), 2),
            "append_to_delivery": quantiles(delays),
        }
    for follower in everybody:
        follower.close()
    for pacer in pacers:
        pacer.close()
    return figures


async def main() -> None:
    """Each window by itself, for what it costs, then all of them side by side."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--streams", type=int, default=10)
    flags.add_argument("--rate", type=float, default=50, help="tokens a second of each stream")
    flags.add_argument("--tokens", type=int, default=500, help="of each stream")
    flags.add_argument("--subscribers", type=int, default=5, help="of each window")
    flags.add_argument("--windows", default="0,20,40,100,500")
    chosen = flags.parse_args()
    windows = [int(each) for each in chosen.windows.split(",")]
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as directory:
        config = Path(directory) / "tidelog.toml"
        config.write_text(CONFIG)
        with ServerProcess(
            data_dir=Path(directory) / "data", arguments=("--config", str(config))
        ) as server:
            server.start()
            meter = Meter(server)
            alone = {
                f"window_{window}": await measure(server.port, meter, chosen, [window], str(window))
                for window in windows
            }
            together = await measure(server.port, meter, chosen, windows, "all")
    single = together.get("window_0", {}).get("bytes_per_token")
    aims = {}
    for window in windows:
        found = together[f"window_{window}"]
        if window and single:
            aims[f"window_{window}"] = {
                "bytes_over_window_0": round(found["bytes_per_token"] / single, 3),
                "p99_ms_beyond_window": round(found["append_to_delivery"]["p99_ms"] - window, 2),
            }
    at_40 = aims.get("window_40", {"bytes_over_window_0": 1, "p99_ms_beyond_window": 1000})
    print(
        json.dumps(
            {
                "bench": "rollup",
                "python": platform.python_version(),
                "cpus": os.cpu_count(),
                "load_average": os.getloadavg(),
                "store": "sqlite, synchronous=FULL",
                "streams": chosen.streams,
                "tokens_per_second_each": chosen.rate,
                "subscribers_of_each_window": chosen.subscribers,
                "side_by_side": together,
                "alone_server_cpu_us_per_token": {
                    window: figures["server_cpu_us_per_token"] for window, figures in alone.items()
                },
                "over_window_0": aims,
                "aims_at_40_ms": {
                    "bytes_at_most": AIM_RATIO,
                    "bytes_met": at_40["bytes_over_window_0"] <= AIM_RATIO,
                    "p99_beyond_window_ms_at_most": AIM_LATE_MS,
                    "p99_met": at_40["p99_ms_beyond_window"] <= AIM_LATE_MS,
                },
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
