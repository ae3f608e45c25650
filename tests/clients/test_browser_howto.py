"""The how-to of tidelog.js: its page, its components and its programs, as printed."""

import asyncio
import json
import re
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from playwright.async_api import Browser, Page, Route, expect

from support import node
from support.channels.javascript import MODULE
from support.dashboard.browser import WAIT_MS, Console
from support.docs.walk import Block, blocks
from tidelog.client import ChannelPublisher
from tidelog.testing.process import ServerProcess

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOWTO = "docs/howto/browser-client.md"
WAIT_SECONDS = 60.0

expect.set_options(timeout=WAIT_MS)


class Site(SimpleHTTPRequestHandler):
    """`python -m http.server`, without its lines."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which a folder is served, as by the how-to's command."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Site, directory=str(folder))) as site:
        serving = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            yield f"http://127.0.0.1:{site.server_address[1]}"
        finally:
            site.shutdown()
            serving.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`tidelog serve --dev`."""
    with ServerProcess(data_dir=tmp_path_factory.mktemp("data"), arguments=("--dev",)) as process:
        process.start()
        yield process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, server: ServerProcess) -> Path:
    """The files that the how-to names, for this server."""
    made = tmp_path_factory.mktemp("howto")
    for block in blocks(HOWTO):
        if block.name:
            text = block.text.replace("8080", str(server.port))
            (made / block.name).write_text(text, encoding="utf-8")
    (made / "favicon.ico").touch()  # which browsers ask for
    (made / "node_modules").mkdir()
    for name in ("ws",):
        home = node.tidelog_js_home() / "node_modules" / name
        (made / "node_modules" / name).symlink_to(home)
    (made / "node_modules" / "tidelog").symlink_to(MODULE.parent)
    return made


@asynccontextmanager
async def opened(browser: Browser, address: str, *ignored: str) -> AsyncIterator[Page]:
    """A page in a device of its own that must not complain."""
    console = Console()
    console.ignored = ignored
    context = await browser.new_context()
    context.set_default_timeout(WAIT_MS)
    page = await context.new_page()
    console.watch(page)
    await page.goto(address)
    yield page
    await context.close()
    assert console.complaints == []


async def output(folder: Path, *command: str) -> str:
    """What a command of the page prints."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(WAIT_SECONDS):
        out, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return out.decode()


def commands() -> list[str]:
    """The lines of all commands of the page."""
    return [
        line for block in blocks(HOWTO) if block.kind == "sh" for line in block.text.splitlines()
    ]


async def test_the_page_shows_what_is_printed(
    browser: Browser, server: ServerProcess, folder: Path
) -> None:
    """An answer grows in two windows, through a reload of one and a `kill -9` of the server."""
    kinds = {"html", "js", "jsx", "sh", "python", "text"}
    assert {block.kind for block in blocks(HOWTO)} == kinds
    serve, site, ask, watch = commands()
    assert (serve, site.split()[:3]) == ("tidelog serve --dev &", ["python", "-m", "http.server"])
    [question] = re.findall(r'"(.+)"', ask)
    program = (folder / "answer.py").read_text(encoding="utf-8")
    [answer] = re.findall(r'ANSWER = "(.*)"', program)
    (folder / "slowly.py").write_text(program.replace("sleep(0.1)", "sleep(0.3)"), encoding="utf-8")
    refused = "ERR_CONNECTION_REFUSED"
    with served(folder) as address:
        async with (
            opened(browser, f"{address}/page.html", refused) as first,
            opened(browser, f"{address}/page.html", refused) as second,
        ):
            for page in (first, second):
                await expect(page.locator("#state")).to_have_text("connected")
            asking = asyncio.create_task(output(folder, sys.executable, "slowly.py", question))
            for page in (first, second):
                await expect(page.locator("li").nth(1)).to_have_text(
                    re.compile(r"^answer: The .*…$")
                )
            await first.reload()
            await expect(first.locator("li").nth(1)).to_contain_text("answer: The tide")
            await asyncio.to_thread(server.kill)
            await expect(second.locator("#state")).to_have_text("waiting")
            await asyncio.to_thread(server.start)
            await asking
            for page in (first, second):
                lines = page.locator("li")
                await expect(lines.nth(1)).to_have_text(f"answer: {answer}")
                await expect(lines).to_have_text([f"question: {question}", f"answer: {answer}"])
                await expect(page.locator("#state")).to_have_text("connected")
    assert watch == "node watch.mjs"
    program, _ = node.programs()
    printed = await output(folder, program, "watch.mjs")
    [said] = [block.text for block in blocks(HOWTO) if block.kind == "text"]
    assert printed.split() == said.split()


async def test_components_of_react_vue_and_svelte(
    browser: Browser, server: ServerProcess, folder: Path
) -> None:
    """Each shows messages as they grow, also after a cut; with the last the subscription ends."""
    program, _ = node.programs()
    source = node.TIDELOG_JS / "frameworks.jsx"
    (folder / source.name).write_bytes(source.read_bytes())
    bundled = await asyncio.create_subprocess_exec(
        *(program, str(node.TIDELOG_JS / "bundle.mjs"), str(folder / source.name)),
        *(str(folder / "bundle.js"), str(MODULE)),
        cwd=await asyncio.to_thread(node.tidelog_js_home),
    )
    assert await bundled.wait() == 0
    (folder / "frameworks.html").write_text(
        "<!doctype html><script type=module src=bundle.js></script>", encoding="utf-8"
    )
    names = ("react", "vue", "svelte")
    with served(folder) as address:
        async with (
            opened(
                browser, f"{address}/frameworks.html", "React DevTools", "Feature flags __VUE"
            ) as page,
            ChannelPublisher(server.url, "app-id", "app-key", "app-secret") as publisher,
        ):
            await publisher.publish("chat", "said", "hello")
            await page.evaluate("() => start('chat')")
            for name in names:
                await expect(page.locator(f"#{name} li")).to_have_text(["hello"])
            async with publisher.stream("chat", "answer") as answer:
                await answer.write("one ")
                for name in names:
                    await expect(page.locator(f"#{name} li")).to_have_text(["hello", "one "])
                await page.evaluate("() => tide.disconnect()")
                await answer.write("two ")
                await page.evaluate("() => tide.connect()")
                for name in names:
                    await expect(page.locator(f"#{name} li")).to_have_text(["hello", "one two "])
            assert await page.evaluate("() => tide.channel('chat').state") == "live"
            for name in names:
                assert await page.evaluate("() => tide.channel('chat') !== undefined")
                await page.evaluate("(name) => end[name]()", name)
            assert await page.evaluate("() => tide.channel('chat') === undefined")


async def test_users_are_let_in_and_talk(
    browser: Browser, server: ServerProcess, folder: Path
) -> None:
    """Endpoints of the application's own: who is there, what somebody says and stops."""
    (folder / "users.html").write_text(
        """<!doctype html><script type=importmap>{"imports": {"tidelog": "./tidelog.js"}}</script>
        <script type=module>
          Object.assign(globalThis, await import("./users.js"), await import("./talk.js"));
          await lobby.ready;
          document.title = "ready";
        </script>""",
        encoding="utf-8",
    )
    (folder / "tidelog.js").write_bytes(MODULE.read_bytes())
    may = {"presence-*": ["subscribe", "presence", "history", "publish"]}
    async with ChannelPublisher(server.url, "app-id", "app-key", "app-secret") as publisher:

        async def authorize(route: Route) -> None:
            [channel], [socket_id] = (
                parse_qs(route.request.post_data or "")[name]
                for name in ("channel_name", "socket_id")
            )
            signed = publisher.authorization(channel, socket_id, user_id="ana")
            await route.fulfill(body=json.dumps(signed.body), content_type="application/json")

        async def give_token(route: Route) -> None:
            await route.fulfill(body=publisher.token("ana", may))

        with served(folder) as address:
            async with opened(browser, f"{address}/page.html") as page:
                await page.route("**/auth", authorize)
                await page.route("**/token", give_token)
                await page.goto(f"{address}/users.html")
                await expect(page).to_have_title("ready")
                assert await page.evaluate("() => lobby.members.map(({ id }) => id)") == ["ana"]
                told = await page.evaluate(
                    """async () => {
                      await typing(true);
                      const said = await ask("why?");
                      const stopped = await stop();
                      return [said.json(), said.clientId, stopped.json(), stopped.clientId];
                    }"""
                )
                assert told == [{"text": "why?"}, "ana", {"own": True}, "ana"]
        page_of_history = await publisher.history("presence-lobby", direction="oldest_first")
        names = [item.name for item in page_of_history.items]
        assert names == ["client-typing", "ai-input", "ai-cancel"]


async def test_the_hooks_are_short() -> None:
    """Ten lines each at most, without the component that uses it."""
    found: dict[str, Block] = {block.name: block for block in blocks(HOWTO) if block.name}
    for name in ("react.jsx", "vue.js", "messages.js"):
        hook = found[name].text.partition("\n\nexport const Chat")[0]
        assert "tide.follow(" in hook
        assert len(hook.splitlines()) <= 10, name
