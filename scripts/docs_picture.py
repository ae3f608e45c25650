"""Takes the pictures in the README: real servers, in a real Chromium.

`.venv/bin/python scripts/docs_picture.py` writes docs/pictures/answer.png and dashboard.png. The
first is the README's own page at three moments of its answer. The second uses the stage of the
browser tests and lets its programs talk for some minutes, so that the charts have a past.
"""

import argparse
import asyncio
import base64
import itertools
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import psutil  # noqa: E402
from playwright.async_api import Browser, async_playwright, expect  # noqa: E402

from support.dashboard.browser import DESKTOP, WAIT_MS  # noqa: E402
from support.dashboard.chromium import chromium_path  # noqa: E402
from support.dashboard.stage import TOPIC, Stage, staged  # noqa: E402
from support.docs.quickstart import Quickstart  # noqa: E402

ANSWER = ROOT / "docs/pictures/answer.png"
PICTURE = ROOT / "docs/pictures/dashboard.png"
WORDS_SHOWN = ("moon", "and", "it.")
"""At which words of its answer the page of the README is looked at."""

MOMENTS = """<style>
  body {{ margin: 0; padding: 14px 18px; background: #eef2f5; color: #4a5a66; }}
  body {{ font: 13px system-ui, sans-serif; }}
  img {{ display: block; width: 560px; border: 1px solid #c3ced6; border-radius: 6px; }}
  img {{ margin-top: 8px; }}
</style>page.html while answer.py runs{}"""
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


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """A process and its children stand still."""
    top = psutil.Process(pid)
    processes = [top, *top.children(recursive=True)]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


async def take_answer(browser: Browser) -> None:
    """The README's page while an answer grows in it, at three moments below each other."""
    figures = []
    with tempfile.TemporaryDirectory(prefix="tidelog-picture-") as folder:
        readme, programs = Quickstart(Path(folder)), Path(sys.executable).parent
        with readme.serving(programs):
            page = await browser.new_page(
                viewport={"width": 560, "height": 52}, device_scale_factor=2
            )
            await page.goto(readme.page)
            answering = readme.answering(programs)
            for word in WORDS_SHOWN:
                await page.wait_for_function(
                    "word => document.querySelector('#answer').textContent.includes(word)", arg=word
                )
                with paused(answering.pid):  # to take a picture takes longer than some words
                    shown = base64.b64encode(await page.screenshot()).decode()
                figures.append(f'<img src="data:image/png;base64,{shown}">')
            await asyncio.to_thread(answering.wait)
    page = await browser.new_page(viewport={"width": 598, "height": 100}, device_scale_factor=2)
    await page.set_content(MOMENTS.format("".join(figures)))
    await page.screenshot(path=ANSWER, full_page=True)
    tell(ANSWER)


def tell(picture: Path) -> None:
    """Say what was written."""
    print(f"docs-picture: {picture.relative_to(ROOT)}, {picture.stat().st_size} bytes")


async def take_dashboard(browser: Browser, seconds: float) -> None:
    """Let the stage live for so long, then take the picture."""
    with tempfile.TemporaryDirectory(prefix="tidelog-picture-") as folder:
        async with staged(Path(folder)) as stage:
            page = await browser.new_page(viewport=DESKTOP, color_scheme="light")
            await page.goto(f"{stage.url}#/overview")
            await expect(page.locator("#link-state")).to_have_text("Live", timeout=WAIT_MS)
            traffic = [asyncio.create_task(talk(stage)), asyncio.create_task(report(stage))]
            await asyncio.wait(traffic, timeout=seconds)
            await page.screenshot(path=PICTURE)
            for task in traffic:
                task.cancel()
            failures = await asyncio.gather(*traffic, return_exceptions=True)
    if wrong := [error for error in failures if not isinstance(error, asyncio.CancelledError)]:
        raise ExceptionGroup(
            "the traffic ended early", [e for e in wrong if isinstance(e, Exception)]
        )
    tell(PICTURE)


async def take(only: str | None, seconds: float) -> None:
    """Take one picture, or both."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=await asyncio.to_thread(chromium_path),
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )
        if only != "dashboard":
            await take_answer(browser)
        if only != "answer":
            await take_dashboard(browser, seconds)
        await browser.close()


def main() -> None:
    """Read the arguments and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("answer", "dashboard"), help="default: both")
    parser.add_argument(
        "--seconds", type=float, default=240.0, help="of traffic before the dashboard's"
    )
    options = parser.parse_args()
    asyncio.run(take(options.only, options.seconds))


if __name__ == "__main__":
    main()
