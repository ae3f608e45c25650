"""`GET /search`: who may ask, what is answered, and that it harms nobody."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.channels.peer import Api
from support.pipeline.search_shard import publish, put
from support.probe.server import mount_probe, running_server
from tidelog.channels.settings import App, Channels, VersionedMessages
from tidelog.channels.surface import ChannelsSurface
from tidelog.cli.serving import _surfaces
from tidelog.config.settings import Pipeline, Settings
from tidelog.pipeline.search.index import (
    MAX_QUERY_CHARACTERS,
    SearchIndex,
    index_root,
    read_manifest,
)
from tidelog.pipeline.search.index_build import sweep_index
from tidelog.serve.server import Node
from tidelog.testing.process import CREDENTIALS
from tidelog.web import search as route
from tidelog.web.search import SearchSurface

TOKEN = "only for the tests"
ADMIN = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake with two messages in its search index."""
    root = tmp_path / "lake"
    index_root(root).mkdir(parents=True)
    shard = put(index_root(root), None, ("m1", "the tide comes"), ("m7", "the tide goes"))
    assert shard is not None
    publish(index_root(root), shard)
    return root


@asynccontextmanager
async def server(
    tmp_path: Path, lake: Path, *, dev: bool = False, token: str = TOKEN
) -> AsyncIterator[httpx.AsyncClient]:
    """A server with search and the probe."""

    async def mount(node: Node) -> SearchSurface:
        return SearchSurface(node.settings, node.settings.lake_path, node.store)

    settings = Settings(dev=dev, admin_token=token, pipeline=Pipeline(lake=str(lake)))
    async with (
        running_server(
            tmp_path / "data", settings=settings, mounts=(mount_probe, mount)
        ) as running,
        httpx.AsyncClient(base_url=running.url, timeout=20) as http,
    ):
        yield http


async def test_the_route_answers_what_the_index_finds(tmp_path: Path, lake: Path) -> None:
    """The same hits as a search in the lake, filtered and limited, with the position they know."""
    async with server(tmp_path, lake) as http:
        answer = await http.get("/search", params={"q": "tide"}, headers=ADMIN)
        assert answer.status_code == 200
        body = answer.json()
        assert (body["total"], body["through"], len(body["hits"])) == (2, 9, 2)
        query = {"q": "tide", "app_id": "app", "channel": "hall", "limit": "1"}
        [hit] = (await http.get("/search", params=query, headers=ADMIN)).json()["hits"]
        assert (hit["message_serial"], hit["channel"], hit["name"]) == ("m7", "hall", "greeting")
        begin, end = hit["highlights"][0]
        assert hit["snippet"][begin:end] == "tide"
        assert (await http.head("/search?q=tide", headers=ADMIN)).status_code == 200
        described = (await http.get("/openapi.json")).json()["paths"]["/search"]["get"]
        assert [parameter["name"] for parameter in described["parameters"]] == [
            "q",
            "app_id",
            "channel",
            "limit",
        ]


async def test_what_is_erased_is_not_found(tmp_path: Path) -> None:
    """Though the index still has it; other hits take its place."""
    app = App(id="app", key="app-key", secret="a secret of an app, longer than 32 bytes")
    root = tmp_path / "lake"
    index_root(root).mkdir(parents=True)
    channels = Channels(versioned_messages=VersionedMessages(enabled=True))
    settings = Settings(
        admin_token=TOKEN, apps=[app], channels=channels, pipeline=Pipeline(lake=str(root))
    )

    async def mount_channels(node: Node) -> ChannelsSurface:
        return await ChannelsSurface.open(node.committer, node.store, node.settings, node.clock)

    async def mount_search(node: Node) -> SearchSurface:
        return SearchSurface(node.settings, root, node.store)

    async def found(limit: int) -> tuple[int, list[str]]:
        query = {"q": "tide", "limit": str(limit)}
        body = (await http.get(f"{running.url}/search", params=query, headers=ADMIN)).json()
        return body["total"], [hit["message_serial"] for hit in body["hits"]]

    async with (
        running_server(
            tmp_path / "data", settings=settings, mounts=(mount_channels, mount_search)
        ) as running,
        httpx.AsyncClient(timeout=20) as http,
    ):
        api = Api(running.url, http, app)
        serials = [(await api.publish("room", "the tide"))["message_serial"] for _ in range(4)]
        shard = put(index_root(root), None, *((serial, "the tide") for serial in serials))
        assert shard is not None
        publish(index_root(root), shard)
        total, best = await found(1)
        assert (total, len(best)) == (4, 1)
        order = {"reason": "r", "channel": "room", "message_serial": best[0]}
        assert (await api.post("/forget", order)).status_code == 200
        total, hits = await found(1)
        assert (total, len(hits)) == (3, 1)
        assert best[0] not in hits
        assert (await api.post("/forget", {"reason": "r", "channel": "room"})).status_code == 200
        assert await found(4) == (0, [])


async def test_a_new_index_is_served_without_a_restart(tmp_path: Path, lake: Path) -> None:
    """The next search after an update answers from it; the files of the old one are gone."""
    async with server(tmp_path, lake) as http:
        assert (await http.get("/search?q=ebb", headers=ADMIN)).json()["total"] == 0
        root = index_root(lake)
        before = read_manifest(root)
        assert before is not None
        shard = put(root, before.shards["0"], ("m1", "the ebb comes"))
        assert shard is not None
        publish(root, shard, through=12)
        sweep_index(root, read_manifest(root))
        body = (await http.get("/search?q=ebb", headers=ADMIN)).json()
        assert (body["total"], body["through"]) == (1, 12)


@pytest.mark.parametrize(
    ("dev", "token", "open_to_all"),
    [(False, TOKEN, False), (False, "", False), (True, "", True), (True, TOKEN, False)],
)
async def test_only_who_has_the_admin_token_may_search(
    tmp_path: Path, lake: Path, *, dev: bool, token: str, open_to_all: bool
) -> None:
    """Everybody's messages are in it; only a development server without a token is open."""
    async with server(tmp_path, lake, dev=dev, token=token) as http:
        for headers, is_allowed in (
            ({}, open_to_all),
            ({"authorization": "Bearer other"}, open_to_all),
            (ADMIN, open_to_all or bool(token)),
        ):
            answer = await http.get("/search?q=tide", headers=headers)
            assert answer.status_code == (200 if is_allowed else 401)
            assert is_allowed or answer.json()["code"] == "unauthorized"


BEYOND = {
    "": "q is missing",
    "?limit=3": "q is missing",
    "?q=": "empty",
    "?q=a&q=b": "twice",
    "?q=a&offset=3": "no parameter 'offset'",
    "?q=a&limit=0": "between 1 and 100",
    "?q=a&limit=101": "between 1 and 100",
    "?q=a&limit=" + "9" * 5000: "between 1 and 100",
    "?q=a&limit=x": "between 1 and 100",
    "?q=" + "a" * (MAX_QUERY_CHARACTERS + 1): "longer than",
    "?q=%22open": "cannot be understood",
    "?q=no:field": "does not exist",
    "?q=%ff": "codec can't decode",
    "?" + "&".join(f"x{n}=1" for n in range(40)): "fields",
}
"""Query strings that are refused, and why."""


async def test_a_search_beyond_a_limit_is_refused(tmp_path: Path, lake: Path) -> None:
    """With the envelope of every refusal, and the reason."""
    async with server(tmp_path, lake) as http:
        for query, why in BEYOND.items():
            answer = await http.get(f"/search{query}", headers=ADMIN)
            body = answer.json()
            assert (answer.status_code, body["status"], body["code"]) == (400, 400, "invalid_input")
            assert why in body["error"]


async def test_searches_wait_in_threads_and_not_in_the_loop(
    tmp_path: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While slow searches fill every thread and place, others are answered, one more is refused.

    A search that takes too long is answered in time, though its thread goes on.
    """
    monkeypatch.setattr(route, "TIMEOUT_SECONDS", 0.2)
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(self: object, query: str, **options: Any) -> None:
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result(20)

    monkeypatch.setattr(SearchIndex, "search", slow)
    async with server(tmp_path, lake) as http:
        room = route.THREADS + route.MAX_WAITING
        slow_ones = [
            asyncio.create_task(http.get("/search?q=tide", headers=ADMIN)) for _ in range(room)
        ]
        answers = await asyncio.gather(*slow_ones)
        assert {answer.json()["code"] for answer in answers} == {"search_timeout"}
        assert (await http.get("/healthz/live")).status_code == 200
        refused = await http.get("/search?q=tide", headers=ADMIN)
        assert (refused.status_code, refused.json()["code"]) == (503, "backpressure")
        release.set()
        monkeypatch.undo()
        deadline = time.monotonic() + 20
        while (await http.get("/search?q=tide", headers=ADMIN)).status_code != 200:
            assert time.monotonic() < deadline, "the threads did not come free"
            await asyncio.sleep(0.02)


async def test_what_is_missing_is_said(
    tmp_path: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No index yet, and no tantivy: 503 with what to do."""
    async with server(tmp_path, tmp_path / "empty") as http:
        answer = await http.get("/search?q=tide", headers=ADMIN)
        assert (answer.status_code, answer.json()["code"]) == (503, "search_unavailable")
        assert "tidelog pipeline run" in answer.json()["error"]
    async with server(tmp_path, lake) as http:
        monkeypatch.setitem(sys.modules, "tantivy", None)
        answer = await http.get("/search?q=tide", headers=ADMIN)
        assert (answer.status_code, answer.json()["code"]) == (503, "search_unavailable")
        assert "pip install 'tidelog[pipeline]'" in answer.json()["error"]


@contextmanager
def serving(tmp_path: Path, **environment: str) -> Iterator[tuple[str, int]]:
    """`tidelog serve` as a process of its own: its URL and process id."""
    with subprocess.Popen(
        [sys.executable, "-m", "tidelog", "serve", "--json", "--port", "0"],
        env={
            **os.environ,
            **CREDENTIALS,
            "TIDELOG_DATA_DIR": str(tmp_path / "data"),
            **environment,
        },
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            yield ready["url"], ready["pid"]
        finally:
            process.terminate()
            process.wait(20)


def test_the_server_serves_the_lake_of_its_settings(tmp_path: Path, lake: Path) -> None:
    """A lake that is named, or is in the data directory, is served; without one there is no route.

    The process that serves it has loaded neither Spark nor what reads tables.
    """

    def mounts(settings: Settings) -> int:
        return len(_surfaces(settings)[0])

    data = tmp_path / "data"
    without = mounts(Settings(data_dir=str(data)))
    assert mounts(Settings(pipeline=Pipeline(lake=str(lake)))) == without + 1
    data.mkdir()
    (data / "lake").symlink_to(lake)
    assert mounts(Settings(data_dir=str(data))) == without + 1
    with serving(tmp_path, TIDELOG_ADMIN_TOKEN=TOKEN) as (url, pid):
        assert httpx.get(f"{url}/search?q=tide", headers=ADMIN).json()["total"] == 2
        maps = Path(f"/proc/{pid}/maps")
        loaded = maps.read_text() if maps.exists() else "tantivy"
        assert "tantivy" in loaded
        assert not [name for name in ("pyarrow", "deltalake", "pandas") if name in loaded]
