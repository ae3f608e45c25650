"""tidelog.js where it runs: inside a page of a real Chromium, and inside a Node process.

Both evaluate the same functions, so a test is written once for the two of them.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from playwright.async_api import Browser, async_playwright

from support import node
from support.channels.peer import APP
from support.dashboard.chromium import chromium_path

MODULE = Path(__file__).parents[3] / "clients" / "js" / "tidelog.js"
WAIT_SECONDS = 60.0


class Host(Protocol):
    """What runs JavaScript."""

    async def evaluate(self, expression: str, arg: Any = None) -> Any:
        """Call a function with an argument; returns its value when it is there."""
        ...


class NodeHost:
    """A Node process that evaluates what it is given."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def read(self) -> None:
        """Take values until the process ends."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said = json.loads(line)
            waiting = self._waiting.pop(said["id"])
            if "error" in said:
                waiting.set_exception(AssertionError(said["error"]))
            else:
                waiting.set_result(said.get("value"))

    async def evaluate(self, expression: str, arg: Any = None) -> Any:
        """See `Host.evaluate`."""
        assert self._process.stdin is not None
        number = next(self._numbers)
        value = self._waiting[number] = asyncio.get_running_loop().create_future()
        line = json.dumps({"id": number, "source": expression, "argument": arg})
        self._process.stdin.write(f"{line}\n".encode())
        async with asyncio.timeout(WAIT_SECONDS):
            return await value


@asynccontextmanager
async def node_host() -> AsyncIterator[NodeHost]:
    """A process for the length of the block."""
    program, _ = node.programs()
    process = await asyncio.create_subprocess_exec(
        *(program, str(node.TIDELOG_JS / "host.mjs")),
        cwd=await asyncio.to_thread(node.tidelog_js_home),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=16 * 1024**2,
    )
    host = NodeHost(process)
    reading = asyncio.create_task(host.read())
    try:
        yield host
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        await reading
        process._transport.close()  # type: ignore[attr-defined]


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A browser for the length of the block."""
    path = await asyncio.to_thread(chromium_path)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=path,
            # As root there is no sandbox; everything the browser sees here is ours.
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )
        yield browser
        await browser.close()


async def prepare(host: Host, address: str) -> None:
    """Load tidelog.js and the tests' tools; clients connect to this address.

    A page gets the module from there and finds the server by where it came from; Node reads the
    file and is told.
    """
    is_page = not isinstance(host, NodeHost)
    given = {
        "module": f"http://{address}/tidelog.js" if is_page else MODULE.as_uri(),
        "url": None if is_page else f"http://{address}",
        "key": APP.key,
        "secret": APP.secret,
    }
    tools = (node.TIDELOG_JS / "tools.js").read_text(encoding="utf-8")
    await host.evaluate(tools.partition("\n\n")[2].rstrip().removesuffix(";"), given)
