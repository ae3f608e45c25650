"""A page in Chromium whose clients are npm's insieme, as it is published.

The modules come out of the package's folder one by one; an import map tells the browser where. The
page has a server of its own, as applications have, so it can be opened while tidelog is down.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from playwright.async_api import BrowserContext, Page

from support.docs.walk import blocks
from support.node import insieme_home

HOWTO = "docs/howto/insieme.md"

HTML = """<!doctype html>
<title>insieme</title>
<link rel="icon" href="data:,">
<script type="importmap">
{"imports": {"insieme/browser": "/node_modules/insieme/src/browser.js",
             "immer": "/node_modules/immer/dist/immer.production.mjs"}}
</script>
<script type="module">
import { openClient } from "/online.js";
import { harbour } from "/page.js";
const actors = new Map();
window.insieme = {
  // `fixed` is of an application that knows its project, as the how-to has it.
  open: ({ name, fixed, ...options }) => {
    const happened = [];
    const made = fixed
      ? harbour(options)
      : openClient({ ...options, dbName: name, onEvent: (event) => happened.push(event) });
    actors.set(name, { ...made, happened });
  },
  close: (name) => actors.get(name).close(),
  submit: (name, items) => actors.get(name).client.submitEvents(items),
  sync: (name) => actors.get(name).client.syncNow(),
  look: async (name) => {
    const { client, store, happened } = actors.get(name);
    const drafts = await store.loadDraftsOrdered(); // first: what is no draft any more was decided
    return { status: client.getStatus(), drafts, committed: await store.listCommitted(), happened };
  },
};
</script>
"""


class InsiemePage:
    """A page and the clients in it."""

    def __init__(self, page: Page) -> None:
        self.page = page

    @classmethod
    async def open(cls, context: BrowserContext, url: str) -> "InsiemePage":
        """A new page in a context, whose databases are those of its earlier pages."""
        page = await context.new_page()
        await page.goto(url)
        await page.wait_for_function("window.insieme !== undefined")
        return cls(page)

    async def start(self, name: str, **options: Any) -> None:
        """Make a client; it connects by itself, and again whenever it has to."""
        await self.page.evaluate(
            "options => window.insieme.open(options)", {"name": name, **options}
        )

    async def call(self, function: str, *arguments: Any) -> Any:
        """Call a function of the page."""
        return await self.page.evaluate(
            "([name, given]) => window.insieme[name](...given)", [function, list(arguments)]
        )

    async def look(self, name: str) -> Any:
        """What a client has, and what it was told."""
        return await self.call("look", name)


class _Files(SimpleHTTPRequestHandler):
    extensions_map = {"": "text/javascript", ".html": "text/html"}  # noqa: RUF012 - the base's

    def log_message(self, *_: object) -> None:
        """Nothing is said of each file."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The page, the how-to's modules and those of the package; yields the URL of the page."""
    (folder / "node_modules").symlink_to(insieme_home() / "node_modules")
    (folder / "index.html").write_text(HTML, encoding="utf-8")
    for block in blocks(HOWTO):
        if block.kind == "js":
            (folder / block.name).write_text(block.text, encoding="utf-8")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()
