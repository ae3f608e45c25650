"""The helper proxy: what `sockudo-python` posts, what the service is asked, what is answered."""

import json
from typing import Any

import pytest

from support.channels.recording_service import APP, RESULT, Recording, call
from tidelog.base.serving.surface import HttpResponse
from tidelog.channels.front.api.proxy import Proxy
from tidelog.channels.protocol import fault
from tidelog.channels.protocol.query import HistoryQuery
from tidelog.channels.protocol.requests import Change, Published
from tidelog.channels.settings import App, Channels, History, VersionedMessages

VERSIONED = VersionedMessages(enabled=True)
SETTINGS = Channels(proxy_enabled=True, proxy_token="p1", versioned_messages=VERSIONED)
BEARER = {"authorization": "Bearer p1"}
PAGE = b'{"items":[],"direction":"newest_first","limit":100,"has_more":false,"next_cursor":null}'


class Server:
    """The proxy's routes on a recording service."""

    def __init__(self, settings: Channels = SETTINGS, app: App = APP) -> None:
        self.service = Recording()
        self.service.answers["history_api.page"] = PAGE
        self.routes = Proxy(self.service.service, [app], settings).routes()

    async def ask(
        self, what: str, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> HttpResponse:
        """What the SDK posts."""
        given = BEARER if headers is None else headers
        text = json.dumps(body).encode()
        return await call(self.routes, "POST", f"/proxy/a1/{what}", text, headers=given)

    async def act(self, action: str, **params: Any) -> HttpResponse:
        """An action of `client.versioned_messages`."""
        return await self.ask("messages", {"channel": "c", "params": params, "action": action})


def told(response: HttpResponse) -> tuple[int, str]:
    """Status and code of a refusal."""
    return response.status, json.loads(response.body)["code"]


@pytest.mark.parametrize(
    "settings", [Channels(), Channels(proxy_enabled=True), Channels(proxy_token="p1")]
)
def test_it_is_served_only_with_switch_and_token(settings: Channels) -> None:
    """Without either of the two settings there is no route."""
    assert Server(settings).routes == ()


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer x"}, {"authorization": "p1"}])
async def test_without_the_token_nothing_happens(headers: dict[str, str]) -> None:
    """Whoever has no token gets 401, on both routes."""
    server = Server()
    for what in ("history", "messages"):
        body = {"channel": "c", "params": {}, "action": "history"}
        assert told(await server.ask(what, body, headers)) == (401, "auth_failed")
    assert server.service.calls == []


async def test_an_unknown_app_is_not_found() -> None:
    """The path names an app that is served and enabled."""
    disabled = App(id="a1", key="k", secret="s", enabled=False)
    other = App(id="a2", key="k", secret="s")
    for app in (disabled, other):
        response = await Server(app=app).ask("history", {"channel": "c", "params": {}})
        assert told(response) == (404, "app_not_found")


async def test_history() -> None:
    """The page of the service is the page the SDK gets."""
    server = Server()
    params = {"direction": "oldest_first", "limit": 5, "cursor": "x", "start_serial": 2}
    response = await server.ask("history", {"channel": "c", "params": params, "action": "history"})
    assert (response.status, response.body) == (200, PAGE)
    query = HistoryQuery(limit=5, direction="oldest_first", cursor="x", start_serial=2)
    assert server.service.calls == [("history_api.page", "a1", "c", query)]


@pytest.mark.parametrize(
    ("params", "end"),
    [
        ({"until_attach": True, "attach_serial": 7}, 7),
        ({"until_attach": True, "attach_serial": 7, "end_serial": 9}, 7),
        ({"until_attach": True, "attach_serial": 7, "end_serial": 3}, 3),
        ({"until_attach": True, "attach_serial": 0}, 0),
        ({"attach_serial": 7}, None),
    ],
)
async def test_history_until_attach(params: dict[str, Any], end: int | None) -> None:
    """`until_attach` ends the page where the client attached, and the SDK is told that place."""
    server = Server()
    response = await server.ask("history", {"channel": "c", "params": params, "action": "history"})
    assert json.loads(response.body)["attach_serial"] == params["attach_serial"]
    [(_, _, _, query)] = server.service.calls
    assert (query.end_serial, query.until_attach) == (end, False)


@pytest.mark.parametrize(
    "params",
    [
        {"until_attach": True},
        {"until_attach": True, "attach_serial": "7"},
        {"until_attach": True, "attach_serial": True},
        {"limit": 0},
        {"direction": "sideways"},
    ],
)
async def test_history_that_is_refused(params: dict[str, Any]) -> None:
    """A malformed question is 400, never an unbounded page."""
    server = Server()
    response = await server.ask("history", {"channel": "c", "params": params, "action": "history"})
    assert told(response) == (400, "invalid_input")
    assert server.service.calls == []


async def test_history_that_is_off() -> None:
    """A channel without history is 422 here too."""
    settings = Channels(proxy_enabled=True, proxy_token="p1", history=History(enabled=False))
    response = await Server(settings).ask("history", {"channel": "c", "params": {}})
    assert told(response) == (422, "feature_disabled")


async def test_create() -> None:
    """A create is a publish that asks for serials; its ack names the message by its serial."""
    server = Server()
    receipt = {
        "acknowledgement_id": "m1",
        "message_serial": "m1",
        "version_serial": "m1",
        "history_serial": 1,
        "delivery_serial": 2,
        "subscription_count": 0,
    }
    answer = json.dumps({"channels": {"c": receipt}}).encode()
    server.service.answers["publish"] = Published(answer)
    response = await server.act("create", event="e", data={"t": "x"}, extras={"own": 1.0})
    [(_, _, [publication], request_key, is_batch)] = server.service.calls
    assert (publication.name, publication.channels) == ("e", ("c",))
    assert (publication.data, publication.extras) == (b'"{\\"t\\":\\"x\\"}"', b'{"own":1.0}')
    assert publication.is_answered_in_detail
    assert (request_key, is_batch) == (None, False)
    assert json.loads(response.body)["ack"] == {
        "action": "create",
        "channel": "c",
        "event": "e",
        "message_id": "m1",
        "message_serial": "m1",
        "version_serial": "m1",
        "history_serial": 1,
        "delivery_serial": 2,
    }


async def test_mutations() -> None:
    """Update, append and delete reach the service; data of an update stays a string."""
    server = Server()
    await server.act("update", message_id="m1", data={"t": 1.0}, event="renamed")
    await server.act("append", message_id="m1", data="more", event="ignored")
    response = await server.act("delete", message_id="m1", reason="spam")
    [(_, _, update), (_, _, append), (_, _, delete)] = server.service.calls
    assert (update.patch.name, update.patch.data) == ("renamed", b'"{\\"t\\":1.0}"')
    assert (append.patch.name, append.patch.data) == (Change.KEEP, b'"more"')
    assert (delete.patch.data, delete.description) == (Change.KEEP, "spam")
    assert {mutation.message_serial for mutation in (update, append, delete)} == {"m1"}
    ack = json.loads(response.body)["ack"]
    assert (ack["action"], ack["message_id"], ack["message_serial"]) == ("delete", "m1", "m1")
    assert (ack["version_serial"], ack["delivery_serial"]) == (RESULT.version_serial, 44)


@pytest.mark.parametrize(
    ("action", "params"),
    [
        ("append", {"data": "x"}),
        ("append", {"message_id": "m1", "data": 5}),
        ("append", {"message_id": "a b", "data": "x"}),
        ("update", {"message_id": "m1"}),
        ("create", {"data": "x"}),
        ("explode", {"message_id": "m1"}),
    ],
)
async def test_messages_that_are_refused(action: str, params: dict[str, Any]) -> None:
    """The checks are those of the signed routes."""
    server = Server()
    assert told(await server.act(action, **params)) == (400, "invalid_input")
    assert server.service.calls == []


async def test_what_the_service_refuses() -> None:
    """A fault of the service is the answer."""
    server = Server()
    server.service.answers["mutate"] = fault.not_found("m1", "c")
    assert told(await server.act("delete", message_id="m1")) == (404, "not_found")
