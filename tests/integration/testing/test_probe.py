"""The probe surface over HTTP and WebSocket, and so the attach and fan-out that surfaces share."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from support.probe.server import running_server
from tidelog.base.settings.limits import Limits
from tidelog.serve.server import Server
from tidelog.testing.process import ServerProcess


def put(key: str, **fields: Any) -> dict[str, Any]:
    """A put message."""
    return {"op": "put", "stream": "s", "key": key, "value": {"of": key}, **fields}


async def ask(socket: ClientConnection, message: dict[str, Any]) -> dict[str, Any]:
    """Send a message and read the next one."""
    await socket.send(json.dumps(message))
    answer: dict[str, Any] = json.loads(await socket.recv())
    return answer


def websocket(server: Server) -> connect:
    """A connection to the probe."""
    return connect(server.url.replace("http", "ws") + "/probe/ws")


async def test_every_outcome_over_http(engine: str, store_location: str, tmp_path: Path) -> None:
    """Committed, duplicate, conflict, refused, poison and malformed have their own status."""
    del engine
    async with (
        running_server(tmp_path, store=store_location) as server,
        httpx.AsyncClient(base_url=server.url, verify=False) as http,
    ):

        async def post(message: object) -> tuple[int, str]:
            answer = await http.post("/probe/entries", json=message)
            return answer.status_code, answer.json().get("status", answer.json().get("code"))

        assert await post(put("a")) == (201, "committed")
        assert await post(put("a")) == (200, "duplicate")
        assert await post(put("a", value=2)) == (409, "conflict")
        assert await post(put("b", weight=-9)) == (422, "refused")
        assert await post(put("c", weight=2**64)) == (500, "failed")
        assert await post(put("b")) == (201, "committed")
        assert await post({"op": "put"}) == (400, "bad_request")
        assert await post(put("d", unknown=1)) == (400, "bad_request")
        twice = b'{"op":"put","stream":"s","key":"e","value":{"x":1,"x":2}}'
        assert (await http.post("/probe/entries", content=twice)).status_code == 400
        state = (await http.get("/probe/streams/s")).json()
        assert state == {"stream": "s", "puts": 2, "weight": 2, "last_committed_id": 2}
        entries = (await http.get("/probe/streams/s/entries?after=1")).json()
        assert [entry["key"] for entry in entries] == ["b"]


async def test_prune_keeps_the_place_and_the_answer(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """A pruned entry keeps its place; a retry is still a duplicate and says the content is gone."""
    del engine
    async with (
        running_server(tmp_path, store=store_location) as server,
        httpx.AsyncClient(base_url=server.url, verify=False) as http,
    ):
        for key in ("a", "b", "c"):
            await http.post("/probe/entries", json=put(key))
        assert (await http.post("/probe/streams/s/prune", json={"through": 9})).status_code == 422
        pruned = await http.post("/probe/streams/s/prune", json={"through": 2})
        assert pruned.json()["pruned"] == 2
        entries = (await http.get("/probe/streams/s/entries")).json()
        assert [entry["value"] for entry in entries] == [None, None, {"of": "c"}]
        retry = (await http.post("/probe/entries", json=put("b"))).json()
        assert (retry["status"], retry["stream_serial"]) == ("duplicate", 2)
        assert retry["available"] is False


async def test_a_subscriber_attaches_without_gap_or_double(
    engine: str, store_location: str, tmp_path: Path
) -> None:
    """Subscribers that attach while others write get every entry once, in order."""
    del engine
    async with running_server(tmp_path, store=store_location) as server:
        total, attached = 400, 8

        async def write(writer: int) -> None:
            async with websocket(server) as socket:
                for number in range(total // 4):
                    result = await ask(socket, put(f"{writer}-{number}"))
                    assert result["status"] == "committed"

        async def follow(delay: float) -> list[int]:
            await asyncio.sleep(delay)
            async with websocket(server) as socket:
                assert (await ask(socket, {"op": "subscribe", "stream": "s"}))["op"] == "subscribed"
                return [json.loads(await socket.recv())["stream_serial"] for _ in range(total)]

        followers = [asyncio.create_task(follow(n * 0.03)) for n in range(attached)]
        await asyncio.gather(*(write(writer) for writer in range(4)))
        async with asyncio.timeout(60):
            for serials in await asyncio.gather(*followers):
                assert serials == list(range(1, total + 1))


async def test_a_writer_sees_its_result_before_its_entry(tmp_path: Path) -> None:
    """On the connection that wrote, the result precedes the entry it speaks of."""
    async with running_server(tmp_path) as server, websocket(server) as socket:
        assert (await ask(socket, {"op": "subscribe", "stream": "s"}))["position"] == 0
        assert (await ask(socket, put("a")))["op"] == "result"
        assert json.loads(await socket.recv())["op"] == "entry"


async def test_messages_of_one_connection_are_answered_in_order(tmp_path: Path) -> None:
    """Pipelined messages, far more than are held at once, are worked on one after another."""
    async with running_server(tmp_path) as server, websocket(server) as socket:
        for number in range(300):
            await socket.send(json.dumps(put(str(number))) if number % 3 else "nonsense")
        answers = [json.loads(await socket.recv()) for _ in range(300)]
        for number, answer in enumerate(answers):
            assert answer.get("key", "") == (str(number) if number % 3 else "")


async def test_a_full_queue_is_an_explicit_refusal(tmp_path: Path) -> None:
    """With the committer's queue full, callers are told so at once, and nothing of it is stored."""
    limits = Limits(commit_queue_requests=2, commit_batch_requests=1)
    async with (
        running_server(tmp_path, limits=limits) as server,
        httpx.AsyncClient(base_url=server.url, verify=False) as http,
    ):
        answers = await asyncio.gather(
            *(http.post("/probe/entries", json=put(str(n))) for n in range(60))
        )
        codes = [answer.status_code for answer in answers]
        assert set(codes) == {201, 503}
        assert all(a.headers["retry-after"] == "1" for a in answers if a.status_code == 503)
        assert (await server.store.head()).committed_id == codes.count(201)


async def test_the_real_server_has_no_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTP or WebSocket; nor does a variable give it one."""
    monkeypatch.setattr(ServerProcess, "program", "tidelog")
    with ServerProcess(data_dir=tmp_path, environment={"TIDELOG_TEST_PROBE": "1"}) as process:
        process.start()
        async with httpx.AsyncClient(base_url=process.url, verify=False) as http:
            assert (await http.post("/probe/entries", json=put("a"))).status_code == 404
        with pytest.raises(Exception, match="404"):
            await connect(f"ws://127.0.0.1:{process.port}/probe/ws").__aenter__()


async def test_a_subscriber_on_another_node_gets_everything(
    postgresql_url: str, tmp_path: Path
) -> None:
    """What one node commits reaches subscribers of another, in order, without polling for it."""
    async with (
        running_server(tmp_path / "a", store=postgresql_url) as first,
        running_server(tmp_path / "b", store=postgresql_url) as second,
        websocket(first) as writer,
        websocket(second) as reader,
    ):
        await ask(writer, put("0"))
        position = (await ask(reader, {"op": "subscribe", "stream": "s"}))["position"]
        assert position == 1, "the second node caught up before it answered"
        for number in range(1, 50):
            await ask(writer, put(str(number)))
        keys = [json.loads(await reader.recv())["key"] for _ in range(50)]
        assert keys == [str(number) for number in range(50)]
