"""Takes the picture of the dashboard in the README: a real server with traffic, in a real Chromium.

`.venv/bin/python scripts/docs_picture.py` writes docs/pictures/dashboard.png. It uses the stage of
the browser tests and lets its programs talk for some minutes, so that the charts have a past.
"""

import argparse
import asyncio
import itertools
import math
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from playwright.async_api import async_playwright, expect  # noqa: E402

from support.browser import DESKTOP, WAIT_MS  # noqa: E402
from support.chromium import chromium_path  # noqa: E402
from support.stage import TOPIC, Stage, staged  # noqa: E402

PICTURE = ROOT / "docs/pictures/dashboard.png"
TIDE_SECONDS = 45.0
"""From one high water of the traffic to the next."""


async def talk(stage: Stage) -> None:
    """Answers, chats and tasks, more and fewer by turns like a tide."""
    for number in itertools.count():
        swell = 1.1 + math.sin(number / TIDE_SECONDS * 2 * math.pi)
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.stream_answer("The tide turns twice a day."))
            for _ in range(1 + round(8 * swell)):
                group.create_task(stage.say("lobby", "chat.message", {"text": f"wave {number}"}))
            for _ in range(1 + round(3 * swell)):
                group.create_task(stage.push_node("ana"))
            group.create_task(asyncio.sleep(1.0))


async def report(stage: Stage) -> None:
    """A pilot tells the level of the water every second."""
    pilot = stage.daemons["pilot"]
    for number in itertools.count():
        await asyncio.to_thread(pilot.send, f"topic:{TOPIC}", f"level {number}", f"level-{number}")
        await asyncio.sleep(1.0)


async def take(seconds: float) -> None:
    """Let the stage live for so long, then take the picture."""
    with tempfile.TemporaryDirectory(prefix="tidelog-picture-") as folder:
        async with staged(Path(folder)) as stage, async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=await asyncio.to_thread(chromium_path),
                args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
            )
            page = await browser.new_page(viewport=DESKTOP, color_scheme="light")
            await page.goto(f"{stage.url}#/overview")
            await expect(page.locator("#link-state")).to_have_text("Live", timeout=WAIT_MS)
            traffic = [asyncio.create_task(talk(stage)), asyncio.create_task(report(stage))]
            await asyncio.wait(traffic, timeout=seconds)
            await page.screenshot(path=PICTURE)
            for task in traffic:
                task.cancel()
            failures = await asyncio.gather(*traffic, return_exceptions=True)
            await browser.close()
    if wrong := [error for error in failures if not isinstance(error, asyncio.CancelledError)]:
        raise ExceptionGroup(
            "the traffic ended early", [e for e in wrong if isinstance(e, Exception)]
        )
    print(f"docs-picture: {PICTURE.relative_to(ROOT)}, {PICTURE.stat().st_size} bytes")


def main() -> None:
    """Read the arguments and take the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=240.0, help="of traffic before it")
    asyncio.run(take(parser.parse_args().seconds))


if __name__ == "__main__":
    main()
