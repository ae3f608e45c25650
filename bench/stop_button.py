"""How long a stop button takes: from the click on one device until the writer knows.

A run writes a token every 20 ms into a channel of a real server. Two pages of Chromium follow it;
one of them cancels it. Times are from the call of `channel.cancel` in that page until the agent's
`run.cancelled` is set, and until the other page shows the message as cancelled, by the clock of the
one machine they are all on. Prints one JSON document.

Example: python bench/stop_button.py --rounds 50
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playwright.async_api import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.channels.javascript import chromium  # noqa: E402
from tidelog.client import ChannelPublisher  # noqa: E402
from tidelog.testing.process import ServerProcess  # noqa: E402

TOKEN_SECONDS = 0.02
PAUSE_SECONDS = 0.1
"""After a round: a socket may publish ten events a second, and one that is over it waits."""

OPEN = """async (token) => {
  const { Tidelog } = await import("/tidelog.js");
  globalThis.chat = new Tidelog({ key: "app-key", token }).subscribe("chat", { rewind: 1 });
  globalThis.ended = {};
  chat.on("message", ({ runId, status }) => {
    if (status === "cancelled") ended[runId] ??= Date.now();
  });
  await chat.ready;
}"""

SHOWN = """async (id) => {
  const isShown = () => chat.messages.some(({ runId }) => runId === id);
  while (!isShown()) await new Promise((go) => setTimeout(go, 5));
}"""

STOP = """async (id) => {
  const at = Date.now();
  await chat.cancel({ runId: id });
  return at;
}"""

ENDED = """async (id) => {
  while (!ended[id]) await new Promise((go) => setTimeout(go, 5));
  return ended[id];
}"""


async def opened(context_of: Any, url: str, token: str) -> Page:
    """A page on a device of its own."""
    page: Page = await (await context_of.new_context()).new_page()
    await page.goto(f"{url}/healthz/live")
    await page.evaluate(OPEN, token)
    return page


async def stopped(publisher: ChannelPublisher, first: Page, second: Page) -> tuple[float, float]:
    """One run that is stopped: milliseconds until the writer, and the other page, knew of it."""
    known_at = 0.0
    async with publisher.run("chat", client_id="ana") as run:

        async def write() -> None:
            while not run.cancelled:
                await run.write("token ")
                await asyncio.sleep(TOKEN_SECONDS)

        writing = asyncio.create_task(write())
        await first.evaluate(SHOWN, run.run_id)
        stopping = asyncio.create_task(second.evaluate(STOP, run.run_id))
        await run.wait_cancelled()
        known_at = time.time() * 1000
        asked_at: float = await stopping
        await asyncio.gather(writing, return_exceptions=True)
    shown_at: float = await first.evaluate(ENDED, run.run_id)
    await asyncio.sleep(PAUSE_SECONDS)
    return known_at - asked_at, shown_at - asked_at


def summary(milliseconds: Sequence[float]) -> dict[str, float]:
    """Quantiles, to a tenth."""
    parts = statistics.quantiles(milliseconds, n=100, method="inclusive")
    whole = {"p50": parts[49], "p95": parts[94], "most": max(milliseconds)}
    return {name: round(value, 1) for name, value in whole.items()}


async def measure(rounds: int, folder: Path) -> dict[str, Any]:
    """All rounds, one after the other."""
    may = {"chat": ["subscribe", "publish", "history"]}
    with ServerProcess(data_dir=folder, arguments=("--dev",)) as server:
        await asyncio.to_thread(server.start)
        async with (
            chromium() as browser,
            ChannelPublisher(server.url, "app-id", "app-key", "app-secret") as publisher,
        ):
            token = publisher.token("ana", may)
            first, second = [await opened(browser, server.url, token) for _ in range(2)]
            await stopped(publisher, first, second)  # the first one loads what all others use
            times = [await stopped(publisher, first, second) for _ in range(rounds)]
    return {
        "writer_knows_ms": summary([known for known, _ in times]),
        "other_page_shows_ms": summary([shown for _, shown in times]),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-stop-") as directory:
        figures = asyncio.run(measure(rounds, Path(directory)))
    conditions = {
        "bench": "stop_button",
        "rounds": rounds,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
    }
    print(json.dumps({**conditions, **figures}, indent=2))


if __name__ == "__main__":
    main()
