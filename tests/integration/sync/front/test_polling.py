"""Sync over HTTP (sync D63): the same messages and answers, one request at a time."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.sync.peer import (
    EVENT,
    TREE,
    SyncNode,
    connected,
    envelope,
    note,
    outcome,
    push,
    sync_server,
    token,
)
from tidelog.base.errors import QueueFull, ShuttingDown, StoreUnavailable


class Poller:
    """A client without a socket."""

    def __init__(self, node: SyncNode, http: httpx.AsyncClient) -> None:
        self.node = node
        self.http = http

    async def post(
        self,
        route: str,
        body: str | bytes,
        *,
        profile: str | None = EVENT,
        bearer: str | None = None,
        **headers: str,
    ) -> tuple[int, dict[str, Any]]:
        """Status, and the message that is the body."""
        headers.setdefault("authorization", f"Bearer {token('c') if bearer is None else bearer}")
        if profile is not None:
            headers["x-sync-profile"] = profile
        content = body if isinstance(body, bytes) else body.encode()
        answer = await self.http.post(f"/sync/v1/{route}", content=content, headers=headers)
        message: dict[str, Any] = answer.json()
        assert message.keys() == {"type", "msg_id", "timestamp", "payload", "protocol_version"}
        assert (message["type"] == "error") is (answer.status_code != 200)
        return answer.status_code, message

    async def submit(self, *items: Any, **options: Any) -> list[dict[str, Any]]:
        """Submit items and get their results."""
        body = envelope("submit_events", {"events": list(items)})
        status, message = await self.post("submit", body, **options)
        assert (status, message["type"]) == (200, "submit_events_result"), message
        results: list[dict[str, Any]] = message["payload"]["results"]
        return results

    async def sync(self, *partitions: str, since: int = 0, **fields: Any) -> dict[str, Any]:
        """A page."""
        payload = {"partitions": list(partitions), "since_committed_id": since, **fields}
        status, message = await self.post("sync", envelope("sync", payload))
        assert (status, message["type"]) == (200, "sync_response"), message
        page: dict[str, Any] = message["payload"]
        return page

    async def code(self, route: str, body: str | bytes, **options: Any) -> tuple[int, str]:
        """Status and error code of a request that is refused."""
        status, message = await self.post(route, body, **options)
        return status, message["payload"]["code"]


@asynccontextmanager
async def poller(tmp_path: Path, **options: Any) -> AsyncIterator[Poller]:
    """A server and a client."""
    async with (
        sync_server(tmp_path, **options) as node,
        httpx.AsyncClient(base_url=node.server.url, timeout=60, verify=False) as http,
    ):
        yield Poller(node, http)


def submit_text(*items: Any, **fields: Any) -> str:
    """A submit message."""
    return envelope("submit_events", {"events": list(items) or [note("a")]}, **fields)


def sync_text(**payload: Any) -> str:
    """A sync message."""
    return envelope("sync", {"partitions": ["p"], "since_committed_id": 0, **payload})


async def test_submit_and_sync_mean_the_same_as_over_a_socket(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """Results, replays, rejections and pages; a socket's subscriber gets the broadcast."""
    del engine
    async with (
        poller(tmp_path, store=store_location) as polling,
        connected(polling.node.ws_url, "watch") as watch,
        connected(polling.node.ws_url, "c") as same_client,
    ):
        await watch.subscribe("p")
        await same_client.subscribe("p")
        bad = note("b", "")
        results = await polling.submit(note("a"), bad)
        assert outcome(results) == ["committed", "validation_failed partitions.0"]
        assert (await polling.submit(note("a"))) == results[:1]
        [event] = await watch.broadcasts(1)
        assert (event["id"], event["client_id"]) == ("a", "c")
        assert await same_client.broadcasts(1) == [event], "no connection submitted it"
        page = await polling.sync("p")
        assert page == {
            "partitions": ["p"],
            "effective_subscriptions": [],
            "events": [event],
            "next_since_committed_id": 1,
            "sync_to_committed_id": 1,
            "has_more": False,
            "model_version": 3,
            "incarnation": polling.node.server.committer.incarnations.current.id,
            "began": 0,
        }
        history = {name: page.pop(name) for name in ("incarnation", "began")}
        assert page == await same_client.sync("p") | {"effective_subscriptions": []}
        assert history.items() <= same_client.received[0]["payload"].items()
        assert await same_client.is_quiet(), "polling evicts nobody"


async def test_the_profile_comes_from_a_header(tmp_path: Path) -> None:
    """`X-Sync-Profile`, by default the tree profile; one that is not offered is 406."""
    async with poller(tmp_path) as polling:
        assert outcome(await polling.submit(push("t", "n"), profile=None)) == ["committed"]
        assert outcome(await polling.submit(push("u", "n"), profile=TREE)) == [
            "validation_failed event.payload.value.id"
        ]
        assert outcome(await polling.submit(note("e"), profile=None)) == [
            "validation_failed event.type"
        ]
        assert outcome(await polling.submit(note("e"), profile=EVENT)) == ["committed"]
        for unknown in ("x", "Canonical", "canonical,compatibility"):
            status, message = await polling.post("submit", submit_text(), profile=unknown)
            assert (status, message["payload"]["code"]) == (406, "profile_unsupported")
            assert message["payload"]["details"]["supported_profiles"] == [TREE, EVENT]
    async with poller(tmp_path, profiles=[EVENT]) as polling:
        assert await polling.code("sync", sync_text(), profile=None) == (406, "profile_unsupported")
        assert (await polling.post("sync", sync_text()))[0] == 200


async def test_every_refusal_has_its_status(tmp_path: Path) -> None:
    """400, 401, 403 and 426; the body is the `error` message, and nothing is stored."""
    async with poller(tmp_path, max_message_bytes=2000) as polling:
        code = polling.code
        bad = (400, "bad_request")
        for text in ("", "{", "[]", "null", '{"a":NaN}', "\xff", "x" * 2001, "{}"):
            assert await code("submit", text) == bad, text
            assert await code("sync", text) == bad, text
        assert await code("submit", b"\xff\xfe") == bad
        assert await code("submit", b"[" * 1900) == bad
        assert await code("submit", submit_text(msg_id="")) == bad
        assert await code("submit", submit_text(note("a"), note("a"))) == bad
        assert await code("submit", envelope("submit_events", {"events": []})) == bad
        assert await code("submit", sync_text()) == bad
        assert await code("sync", submit_text()) == bad
        for kind in ("connect", "heartbeat", "disconnect", "sync_response", "nonsense"):
            assert await code("submit", envelope(kind, {})) == bad, kind
        assert await code("sync", sync_text(partitions=[])) == bad
        unsupported = (426, "protocol_version_unsupported")
        status, message = await polling.post("submit", submit_text(protocol_version="2.0"))
        assert (status, message["payload"]["code"]) == unsupported
        assert message["payload"]["details"]["supported_versions"] == ["1.0"]
        assert await code("submit", envelope("nonsense", {}, protocol_version="1.1")) == unsupported
        wrong_route = envelope("sync", {}, protocol_version="1.1")
        assert await code("submit", wrong_route) == unsupported, "the version comes first"
        failed = (401, "auth_failed")
        for bearer in ("x", "x.y.z", token("c", exp=1), token("")):
            assert await code("submit", submit_text(), bearer=bearer) == failed
        for header in ("", "Basic abc", "Bearer", token("c")):
            assert await code("submit", submit_text(), authorization=header) == failed
        asserted = envelope("submit_events", {"events": [note("a")], "client_id": "d"})
        assert await code("submit", asserted) == failed
        narrow = token("c", prefixes=["q"])
        status, message = await polling.post("sync", sync_text(), bearer=narrow)
        assert (status, message["payload"]["code"]) == (403, "forbidden")
        assert message["payload"]["details"]["partitions"] == ["p"]
        [result] = await polling.submit(note("a"), bearer=narrow)
        assert result["reason"] == "forbidden", "an item's denial is a result, not a status"
        assert await polling.node.counts() == (0, 0)
        status, message = await polling.post("submit", submit_text(msg_id="m7", timestamp="x"))
        assert message["payload"]["details"]["request_msg_id"] == "m7"
        assert (await polling.http.get("/sync/v1/sync")).status_code == 405


async def test_there_are_no_subscriptions(tmp_path: Path) -> None:
    """`subscription_partitions`, even empty or of denied names, is `bad_request`."""
    async with poller(tmp_path) as polling:
        for names in ([], ["p"], None, "p"):
            body = sync_text(subscription_partitions=names)
            assert await polling.code("sync", body) == (400, "bad_request")
        denied = sync_text(partitions=["q"], subscription_partitions=["p"])
        bearer = token("c", prefixes=["p"])
        assert await polling.code("sync", denied, bearer=bearer) == (400, "bad_request")


async def test_paging_is_stateless(engine: str, store_location: str, tmp_path: Path) -> None:
    """The repeated watermark bounds every page; one from the future is cut to the maximum."""
    del engine
    async with poller(tmp_path, store=store_location, sync_limit_min=2) as polling:
        await polling.submit(*(note(str(n)) for n in range(5)))
        page = await polling.sync("p", limit=2)
        assert (page["sync_to_committed_id"], page["has_more"]) == (5, True)
        await polling.submit(note("later"))
        seen = [event["id"] for event in page["events"]]
        while page["has_more"]:
            since = page["next_since_committed_id"]
            page = await polling.sync("p", since=since, limit=2, sync_to_committed_id=5)
            assert page["sync_to_committed_id"] == 5
            seen += [event["id"] for event in page["events"]]
        assert seen == ["0", "1", "2", "3", "4"]
        assert page["next_since_committed_id"] == 5
        page = await polling.sync("p", since=2, limit=2)
        assert page["sync_to_committed_id"] == 6, "without it every request is a new cycle"
        page = await polling.sync("p", since=4, sync_to_committed_id=10**12)
        assert [event["id"] for event in page["events"]] == ["4", "later"]
        assert page["sync_to_committed_id"] == 6
        page = await polling.sync("p", since=4, sync_to_committed_id=5.0)
        assert page["sync_to_committed_id"] == 5
        wrongs: list[Any] = [-1, 1.5, "5", True, None, []]
        for wrong in wrongs:
            body = sync_text(sync_to_committed_id=wrong)
            assert await polling.code("sync", body) == (400, "bad_request"), wrong
        for wrong in (None, "", 1):
            payload = {"partitions": ["p"], "since_committed_id": 0, "incarnation": wrong}
            body = envelope("sync", payload)
            assert await polling.code("sync", body) == (400, "bad_request"), wrong
        page = await polling.sync("p", since=99)
        assert (page["events"], page["next_since_committed_id"]) == ([], 6)


async def test_a_page_from_a_slower_node_is_not_shorter(
    postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated watermark of a faster node holds on one that has not seen it yet."""
    async with (
        poller(tmp_path / "a", store=postgresql_url, sync_limit_min=2) as first,
        poller(tmp_path / "b", store=postgresql_url, sync_limit_min=2) as second,
    ):
        await first.submit(*(note(str(n)) for n in range(3)))
        await second.sync("p")
        entries = second.node.store.entries

        async def slow(*arguments: Any, **options: Any) -> Any:
            await asyncio.sleep(0.3)
            return await entries(*arguments, **options)

        monkeypatch.setattr(second.node.store, "entries", slow)
        await first.submit(*(note(f"x{n}") for n in range(3)))
        page = await first.sync("p", limit=4)
        assert (page["sync_to_committed_id"], page["has_more"]) == (6, True)
        since = page["next_since_committed_id"]
        page = await second.sync("p", since=since, limit=4, sync_to_committed_id=6)
        assert [event["id"] for event in page["events"]] == ["x1", "x2"]
        assert page["sync_to_committed_id"] == 6


async def test_trouble_of_the_server_has_its_status_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full queue or an ending server is 429, a failing store or a mistake of ours is 500."""
    async with poller(tmp_path) as polling:
        server = polling.node.server

        def raising(error: Exception) -> Any:
            def fail(*_: Any) -> Any:
                raise error

            return fail

        for error in (QueueFull("full"), ShuttingDown("ending")):
            monkeypatch.setattr(server.committer, "submit", raising(error))
            status, message = await polling.post("submit", submit_text())
            assert (status, message["payload"]["code"]) == (429, "rate_limited")
            assert message["payload"]["details"]["retry_after_ms"] > 0
        monkeypatch.undo()
        for failure in (StoreUnavailable("SELECT secrets"), RuntimeError("secrets")):
            monkeypatch.setattr(polling.node.store, "rows", raising(failure))
            for route, body in (("sync", sync_text()), ("submit", submit_text(push("t", "n")))):
                status, message = await polling.post(route, body, profile=TREE)
                assert (status, message["payload"]["code"]) == (500, "server_error"), route
                assert "secrets" not in json.dumps(message)
        monkeypatch.undo()
        writer = polling.node.store.writer

        async def refuse(*_: Any) -> Any:
            await writer.rollback()
            raise StoreUnavailable("no")

        monkeypatch.setattr(writer, "commit", refuse)
        assert await polling.code("submit", submit_text()) == (500, "server_error")
        monkeypatch.undo()
        assert outcome(await polling.submit(note("a"))) == ["committed"]


async def test_an_expired_token_opens_nothing(tmp_path: Path) -> None:
    """Every request is judged at its own time: the same token works until it ends."""
    async with poller(tmp_path) as polling:
        bearer = token("c", exp=int(time.time()) + 2)
        assert (await polling.post("sync", sync_text(), bearer=bearer))[0] == 200
        await asyncio.sleep(2.01)
        assert await polling.code("sync", sync_text(), bearer=bearer) == (401, "auth_failed")
