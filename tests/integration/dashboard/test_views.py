"""What the views are made of, on both engines."""

import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from support.dashboard.feed_peer import TOKEN, Desk, desk
from support.mesh.local_daemon import LocalDaemon
from support.sync.peer import SECRET, connected, note, write_model
from tidelog.client import ChannelPublisher
from tidelog.config.settings import DEVELOPMENT_ADMIN_TOKEN
from tidelog.daemon.key_file import new_key
from tidelog.dashboard.views.channels import MAX_TEXT, PAGE_MESSAGES
from tidelog.dashboard.views.outboxes import NoDaemon, OutboxView
from tidelog.dashboard.views.pipeline import PipelineView
from tidelog.mesh.protocol.identity import MemberKey
from tidelog.sync.settings import SyncSettings as Sync

SLUG = "harbour"
STREAM = "channels/app-id/room"


@pytest_asyncio.fixture
async def here(tmp_path: Path, store_location: str) -> AsyncIterator[Desk]:
    """A server on either engine that serves all three surfaces."""
    sync = Sync(jwt_secret=SECRET, model_file=write_model(tmp_path), sync_limit_min=1)
    async with desk(tmp_path / "data", store=store_location, dev=True, sync=sync) as made:
        yield made


def publisher(here: Desk) -> ChannelPublisher:
    """The server of the known app."""
    return ChannelPublisher(here.server.url, "app-id", "app-key", "app-secret")


async def test_channels_and_messages(here: Desk) -> None:
    """Channels are listed by their newest message or by name; messages as they look now."""
    async with publisher(here) as app:
        await app.publish("room", "first", "one")
        receipt = await app.publish("room", "second", {"n": 2})
        await app.publish("hall", "only", "x" * (MAX_TEXT + 1))
        await app.update("room", receipt.message_serial or "", data="two", description="why")
        async with app.stream("room", "answer") as answer:
            await answer.write("three")
            [newest, _] = (await here.get("channels"))["channels"]
            assert (newest["channel"], newest["open"], newest["messages"]) == ("room", 1, 3)
    assert [c["channel"] for c in (await here.get("channels"))["channels"]] == ["room", "hall"]
    named = (await here.get("channels", prefix="ha"))["channels"]
    assert [(c["channel"], c["messages"], c["subscribers"]) for c in named] == [("hall", 1, 0)]
    assert (await here.get("channels", prefix="nothing"))["channels"] == []
    found = (await here.get("messages", stream=STREAM))["messages"]
    assert [(m["name"], m["text"]) for m in found] == [
        ("answer", "three"),
        ("second", "two"),
        ("first", "one"),
    ]
    assert not found[0]["is_open"]
    assert found[1]["versions"] == 2
    versions = (await here.get("versions", message=receipt.message_serial))["versions"]
    assert [(v["kind"], v["text"]) for v in versions] == [
        ("message.update", "two"),
        ("message.create", '{"n":2}'),
    ]
    assert versions[0]["description"] == "why"
    [long] = (await here.get("messages", stream="channels/app-id/hall"))["messages"]
    assert (len(long["text"]), long["is_cut"], long["bytes"]) == (MAX_TEXT, True, MAX_TEXT + 1)


async def test_messages_come_in_pages(here: Desk) -> None:
    """A long channel is read page by page, without a message missing or twice."""
    async with publisher(here) as app:
        for number in range(PAGE_MESSAGES + 2):
            await app.publish("room", "n", str(number))
    first = await here.get("messages", stream=STREAM)
    assert first["has_more"]
    before = first["messages"][-1]["history_serial"]
    second = await here.get("messages", stream=STREAM, before=before)
    assert not second["has_more"]
    texts = [m["text"] for m in first["messages"] + second["messages"]]
    assert texts == [str(number) for number in reversed(range(PAGE_MESSAGES + 2))]


async def test_an_entry_shows_its_content(here: Desk) -> None:
    """One entry comes with its body and digests; a place without one is 404."""
    async with publisher(here) as app:
        await app.publish("room", "chat", "hello")
    entry = await here.get("entry/1")
    assert (entry["stream"], entry["kind"], entry["is_pruned"]) == (STREAM, "message.create", False)
    assert '"data":"hello"' in entry["body"]
    assert len(entry["digest"]) == 32
    for place in ("2", "0", "999999999999999999", "x", "-1"):
        answer = await here.http.get(f"/dashboard/api/entry/{place}")
        assert answer.status_code in {400, 404}, place


async def test_sync_clients_with_cursor_and_lag(here: Desk) -> None:
    """A subscribed client has no lag; one with pages to come, or without a wish, has."""
    url = here.server.url.replace("http", "ws") + "/sync"
    async with connected(url, "live") as live, connected(url, "slow") as slow:
        async with connected(url, "idle"):
            await live.subscribe("p")
            await live.submit(*(note(f"n{number}") for number in range(5)))
            page = await slow.sync("p", limit=2)
            assert page["has_more"]
            found = await here.get("sync")
        rows = {
            row["client"]: (row["state"], row["cursor"], row["lag"]) for row in found["clients"]
        }
        assert rows == {
            "idle": ("idle", 0, 5),
            "slow": ("catching up", 2, 3),
            "live": ("live", 0, 0),
        }
        assert [row["client"] for row in found["clients"]] == ["idle", "slow", "live"]
        assert (found["last_event"], found["is_served"]) == (5, True)


class Broker:
    """The HTTP side of the mesh, as far as these tests need it."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def call(self, method: str, path: str, body: object, token: str) -> Any:
        """One request."""
        headers = {"authorization": f"Bearer {token}"}
        answer = await self._http.request(method, f"/mesh{path}", json=body, headers=headers)
        assert answer.status_code < 300, answer.text
        return answer.json()

    async def member(self, name: str) -> MemberKey:
        """A new member that is subscribed to the topic."""
        key = new_key()
        invited = await self.call("POST", f"/{SLUG}/invites", {}, DEVELOPMENT_ADMIN_TOKEN)
        request = {
            "invite": invited["invite"],
            "member_pubkey": key.public_hex,
            "name": name,
            "signature": key.sign_join(SLUG, invited["invite"], name),
        }
        await self.call("POST", f"/{SLUG}/members", request, "none")
        await self.as_member(key, "POST", "/topics", {"topic": "tides"})
        await self.as_member(key, "PUT", "/topics/tides/subscription", {})
        return key

    async def as_member(self, key: MemberKey, method: str, path: str, body: object) -> Any:
        """One request with a member's token."""
        token = key.token(SLUG, unix_now=time.time(), jti=secrets.token_hex(8))
        return await self.call(method, f"/{SLUG}{path}", body, token)


async def test_mesh_members_and_deliveries(here: Desk) -> None:
    """Members come with what waits for them, and sends with the state of every delivery."""
    assert (await here.get("mesh")) == {"is_served": True, "meshes": []}
    broker = Broker(here.http)
    await broker.call("POST", "", {"slug": SLUG}, DEVELOPMENT_ADMIN_TOKEN)
    ana = await broker.member("ana")
    for name in ("ben", "carl"):
        await broker.member(name)
    send = {
        "envelope_version": 1,
        "client_message_id": "m1",
        "destination_kind": "topic",
        "destination_ref": "tides",
        "body": "High water.",
    }
    await broker.as_member(ana, "POST", "/messages", send)
    [mesh] = (await here.get("mesh"))["meshes"]
    assert mesh["slug"] == SLUG
    found = await here.get(f"mesh/{mesh['id']}")
    assert [(m["name"], m["waiting"], m["is_here"]) for m in found["members"]] == [
        ("ana", 0, False),
        ("ben", 1, False),
        ("carl", 1, False),
    ]
    assert found["waiting"] == {"pending": 2}
    [sent] = found["sends"]
    assert (sent["sender"], sent["kind"], sent["to"]) == ("ana", "topic", "tides")
    assert sent["states"] == {"pending": 2}
    assert {d["recipient"] for d in sent["deliveries"]} == {"ben", "carl"}
    assert await here.get("mesh/nothing") == {"members": [], "waiting": {}, "sends": []}


async def test_what_is_not_served_says_so(tmp_path: Path) -> None:
    """A server without a surface says so instead of showing nothing."""
    async with desk(tmp_path, admin_token=TOKEN) as here:
        await here.log_in()
        assert (await here.get("sync"))["is_served"] is False
        assert "There is no lake" in (await here.get("pipeline"))["problem"]
        assert "no search index" in (await here.get("search", q="tide"))["problem"]
        assert "empty" in (await here.get("search", q=" "))["problem"]
        assert (await here.get("state"))["surfaces"] == ["mesh"]


async def test_without_the_extra_the_pipeline_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the libraries of the pipeline are missing, the page says how to get them."""
    monkeypatch.setitem(sys.modules, "tidelog.pipeline.lake.lake", None)
    answer = await PipelineView(tmp_path).tables()
    assert "tidelog[pipeline]" in answer["problem"]


async def test_outbox_of_a_daemon(tmp_path: Path) -> None:
    """Rows are listed, dropped and requeued through the daemon's own socket."""
    # A Unix socket's path may have 107 bytes; pytest's directories are longer.
    with tempfile.TemporaryDirectory(prefix="tdl-") as home:
        folder = Path(home) / "ops"
        folder.mkdir()
        (folder / "key.json").write_text("{}")
        (Path(home) / "away").mkdir()
        (Path(home) / "away" / "key.json").write_text("{}")
        daemon = LocalDaemon(folder)
        await daemon.start()
        try:
            await check_outbox(OutboxView(Path(home)), daemon)
        finally:
            await daemon.stop()
    assert (await OutboxView(tmp_path).daemons())["daemons"] == []


async def check_outbox(view: OutboxView, daemon: LocalDaemon) -> None:
    """What `test_outbox_of_a_daemon` says."""
    before = view.signature()
    async with daemon.unix() as client:
        for name in ("m1", "m2"):
            send = {"to": "topic:tides", "message": "Fog.", "client_message_id": name}
            assert (await client.post("/v1/send", json=send)).status_code == 202
    assert view.signature() != before, "nobody is told that the outbox changed"
    away, ops = (await view.daemons())["daemons"]
    assert ops["health"]["queue_depth"] == 2
    assert "error" in away
    rows = {row["client_message_id"]: row for row in (await view.rows("ops", "")).body["items"]}
    assert {name: row["status"] for name, row in rows.items()} == {"m1": "pending", "m2": "pending"}
    assert (await view.drop("ops", rows["m1"]["id"])).status == 200
    assert (await view.requeue("ops", rows["m2"]["id"])).status == 200
    assert (await view.drop("ops", rows["m1"]["id"])).status == 409, "it is dropped already"
    statuses = [row["status"] for row in (await view.rows("ops", "")).body["items"]]
    assert sorted(statuses) == ["aborted", "aborted", "pending"]
    assert len((await view.rows("ops", "aborted")).body["items"]) == 2
    [waiting] = (await view.rows("ops", "pending")).body["items"]
    daemon.outbox.follow("h1", 0)
    daemon.put("done", waiting["client_message_id"])
    assert (await view.rows("ops", "lost")).body["items"] == []
    daemon.outbox.follow("h2", 40)
    [lost] = (await view.rows("ops", "lost")).body["items"]
    assert (lost["id"], lost["possibly_lost"]) == (waiting["id"], True)
    assert (await view.requeue("ops", lost["id"])).status == 200
    for name in ("..", "", "nobody", "../ops", "away"):
        with pytest.raises(NoDaemon):
            await view.drop(name, rows["m1"]["id"])
