"""Raw peers of a channels server that may go away at any moment: a signed client and a follower.

Like `channels_peer` this uses nothing of the server's own code; unlike it, it costs little for each
request and gets over restarts.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from support.channels.peer import APP, V2_QUERY, channel_auth
from tidelog.channels.settings import App

LOST = (OSError, EOFError, asyncio.IncompleteReadError, WebSocketException, TimeoutError)
"""What a peer sees of a server that is gone."""

PAUSE_SECONDS = 0.05
Json = dict[str, Any]


class Answer(NamedTuple):
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Its body."""
        return json.loads(self.body)


def signed_target(
    method: str,
    path: str,
    body: bytes | None,
    params: dict[str, Any],
    *,
    now: float,
    app: App = APP,
) -> str:
    """Path and query of a correctly signed request (channels 4.1)."""
    query = {name: str(value) for name, value in params.items()}
    query |= {"auth_key": app.key, "auth_timestamp": str(int(now)), "auth_version": "1.0"}
    if body is not None:
        query["body_md5"] = hashlib.md5(body).hexdigest()
    signed = "&".join(f"{name.lower()}={query[name]}" for name in sorted(query))
    text = f"{method}\n{path}\n{signed}".encode()
    query["auth_signature"] = hmac.digest(app.secret.encode(), text, "sha256").hex()
    return f"{path}?{urlencode(query)}"


class RawClient:
    """One keep-alive connection; it is opened again when it was lost."""

    def __init__(
        self,
        port: Callable[[], int],
        *,
        app: App = APP,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.app = app
        self._port = port
        self._now = now
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(
        self, method: str, target: str, body: bytes | None = None, headers: str = ""
    ) -> Answer:
        """One request as it is given; raises one of `LOST` when the server is gone."""
        head = f"{method} {target} HTTP/1.1\r\nhost: test\r\n{headers}"
        if body is not None:
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        return await self.send_bytes(f"{head}\r\n".encode() + (body or b""))

    async def send_bytes(self, request: bytes, *, has_body: bool = True) -> Answer:
        """The bytes of one request."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port(), limit=2**24)
        reader, writer = self._streams
        writer.write(request)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")[:-2]
            found = {
                name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
            }
            length = int(found.get("content-length", "0")) if has_body else 0
            answer = Answer(int(first.split(" ")[1]), found, await reader.readexactly(length))
        except BaseException:
            self.close()
            raise
        if found.get("connection") == "close":
            self.close()
        return answer

    async def request(self, method: str, path: str, body: Any = None, **params: Any) -> Answer:
        """A signed request; `path` is below the app's and percent-encoded already."""
        text = None if body is None else json.dumps(body).encode()
        target = signed_target(
            method, f"/apps/{self.app.id}{path}", text, params, now=self._now(), app=self.app
        )
        return await self.send(method, target, text)

    async def get(self, path: str, **params: Any) -> Any:
        """The JSON of a GET that succeeds."""
        answer = await self.request("GET", path, **params)
        assert answer.status == 200, answer
        return answer.json

    def close(self) -> None:
        """Drop the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Position(NamedTuple):
    """How far a follower got."""

    serial: int
    stream_id: str
    last_message_id: str | None


class Follower:
    """A V2 subscriber from the first operation on, through every restart: resume, then subscribe.

    Any gap, any frame twice and any refused resume is an `AssertionError` of its task.
    """

    def __init__(
        self,
        url: Callable[[], str],
        channel: str,
        *,
        is_full: bool = False,
        restless: random.Random | None = None,
        app: App = APP,
    ) -> None:
        """Prepare; nothing happens before `run`.

        Args:
            url: where the server is now.
            channel: what to follow.
            is_full: whether appends shall come as the whole text.
            restless: leaves now and then, comes back after a while; None stays.
            app: whose channel it is.
        """
        self.channel = channel
        self.is_full = is_full
        self.frames: list[Json] = []
        """Every operation of the channel, in order."""
        self.attached = 0
        self.replayed = 0
        """Frames that came by resuming."""
        self.sources: set[str] = set()
        self.position: Position | None = None
        self.may_connect = asyncio.Event()
        """Cleared by who wants it to stay away for a while."""
        self.may_connect.set()
        self._url = url
        self._restless = restless
        self._app = app

    async def run(self) -> None:
        """Until cancelled."""
        mode = "full" if self.is_full else "delta"
        while True:
            await self.may_connect.wait()
            with contextlib.suppress(*LOST):
                url = f"{self._url()}/app/{self._app.key}?{V2_QUERY}&append_mode={mode}"
                async with connect(
                    url,
                    compression=None,
                    max_size=None,
                    max_queue=None,
                    ping_interval=None,
                    open_timeout=5,
                    close_timeout=0.2,
                ) as socket:
                    await self._follow(socket)
            away = 0 if self._restless is None else self._restless.uniform(0, 0.2)
            await asyncio.sleep(PAUSE_SECONDS + away)

    async def _follow(self, socket: ClientConnection) -> None:
        opened = json.loads(await socket.recv())
        assert opened["event"] == "sockudo:connection_established", opened
        socket_id = json.loads(opened["data"])["socket_id"]
        if self.position is not None:
            positions = {self.channel: self.position._asdict()}
            resume = {"event": "sockudo:resume", "data": {"channel_positions": positions}}
            await socket.send(json.dumps(resume))
        wanted = {"channel": self.channel}
        if self.channel.startswith("private-"):
            wanted["auth"] = channel_auth(socket_id, self.channel, app=self._app)
        await socket.send(json.dumps({"event": "sockudo:subscribe", "data": wanted}))
        stays = 10**9 if self._restless is None else self._restless.randint(1, 40)
        leave_at = len(self.frames) + stays
        async for message in socket:
            self._take(json.loads(message))
            if len(self.frames) >= leave_at:
                return

    def _take(self, frame: Json) -> None:
        match frame["event"]:
            case "sockudo_internal:subscription_succeeded":
                self.attached += 1
                if self.position is None:
                    self.position = Position(frame["serial"], frame["stream_id"], None)
                assert frame["serial"] == self.position.serial, (frame, self.position)
                assert frame["stream_id"] == self.position.stream_id
            case "sockudo:resume_success":
                data = json.loads(frame["data"])
                assert data["failed"] == [], frame
                [recovered] = data["recovered"]
                self.replayed += recovered["replayed"]
                self.sources.add(recovered["source"])
            case "sockudo:error" if frame["data"]["code"] in (4100, 4200):
                pass  # the server stops, or wants us to come back
            case _:
                assert "serial" in frame, frame
                assert self.position is not None
                assert frame["serial"] == self.position.serial + 1, (frame, self.position)
                assert frame["stream_id"] == self.position.stream_id
                self.position = Position(frame["serial"], frame["stream_id"], frame["message_id"])
                self.frames.append(frame)

    async def reach(self, serial: int, task: asyncio.Task[None], seconds: float = 20) -> None:
        """Return once it has that operation; its task must be running."""
        async with asyncio.timeout(seconds):
            while self.position is None or self.position.serial < serial:
                if task.done():
                    task.result()
                await asyncio.sleep(0.005)


# What a client makes of what it is told, written from the contract (channels 5.8, 5.9).


class View(NamedTuple):
    """A message as somebody sees it."""

    message_serial: str
    version_serial: str
    history_serial: int
    delivery_serial: int
    action: str
    name: str | None
    data: Any
    """`ABSENT` if there is none."""
    extras: Json


ABSENT = "\0absent"


def of_item(item: Json) -> View:
    """A version or message as the HTTP API shows it."""
    assert item["serial"] == item["delivery_serial"]
    assert item["event"] == f"sockudo:message.{item['action']}"
    return View(
        item["message_serial"],
        item["version"]["serial"],
        item["history_serial"],
        item["delivery_serial"],
        item["action"],
        item.get("name"),
        item.get("data", ABSENT),
        item["extras"],
    )


def of_frame(frame: Json) -> View:
    """An operation as a socket is told it, live or rewound."""
    headers = frame["extras"]["headers"]
    action = headers["sockudo_action"].removeprefix("message.")
    is_live_create = frame["event"] != f"sockudo:message.{action}"
    assert not is_live_create or action == "create", frame
    return View(
        headers["sockudo_message_serial"],
        headers["sockudo_version_serial"],
        headers["sockudo_history_serial"],
        frame["serial"],
        action,
        frame["event"] if is_live_create else frame.get("name"),
        frame.get("data", ABSENT),
        frame["extras"],
    )


def after(before: View | None, version: View) -> View:
    """A message after a version whose `data` is, of an append, what it added."""
    if before is None or version.action != "append" or before.data == ABSENT:
        return version
    return version._replace(data=before.data + version.data)


def latest_of(views: list[View], *, is_full: bool = False) -> dict[str, View]:
    """Every message after these operations; the first one seen of a message says all of it."""
    messages: dict[str, View] = {}
    for view in views:
        known = None if is_full else messages.get(view.message_serial)
        messages[view.message_serial] = after(known, view)
    return messages
