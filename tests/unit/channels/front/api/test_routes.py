"""The signed routes: what reaches the service, and what a client is told."""

import json

import pytest

from support.channels.recording_service import APP, RESULT, Recording, call, signed_query
from tidelog.base.allowance import Allowance
from tidelog.base.errors import QueueFull
from tidelog.base.serving.surface import HttpResponse
from tidelog.channels.front.api.routes import ChannelsHttp
from tidelog.channels.protocol import fault
from tidelog.channels.protocol.query import HistoryQuery
from tidelog.channels.protocol.requests import Change, Published, VersionsQuery
from tidelog.channels.settings import App, Channels, History, VersionedMessages
from tidelog.testing.clock import FakeClock

VERSIONED = Channels(versioned_messages=VersionedMessages(enabled=True))
MESSAGE = "/apps/a1/channels/room-7/messages/m1"
EVENT = b'{"name":"e","channel":"room-7","data":"d"}'


class Server:
    """The routes on a recording service, asked as the server SDK asks."""

    def __init__(self, settings: Channels = VERSIONED, app: App = APP) -> None:
        self.service = Recording()
        self.clock = FakeClock()
        self.app = app
        self.routes = ChannelsHttp(self.service.service, [app], settings, self.clock).routes()

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
    ) -> HttpResponse:
        """A signed request."""
        now_s = self.clock.now_ms() // 1000
        text = signed_query(method, path, body, now_s, self.app, **(query or {}))
        return await call(self.routes, method, path, body, text, headers)


def told(response: HttpResponse) -> tuple[int, str]:
    """Status and code of a refusal, whose envelope must be complete."""
    envelope = json.loads(response.body)
    assert response.content_type == "application/json"
    assert envelope["status"] == response.status
    assert isinstance(envelope["error"], str)
    return response.status, envelope["code"]


# Publishing


async def test_a_publish_reaches_the_service_and_its_answer_the_client() -> None:
    """The service's rendered answer is given out verbatim."""
    server = Server()
    server.service.answers["publish"] = Published(b'{"channels":{}}')
    response = await server.ask("POST", "/apps/a1/events", EVENT)
    assert (response.status, response.body) == (200, b'{"channels":{}}')
    [(_, app_id, [publication], request_key, is_batch)] = server.service.calls
    assert (app_id, publication.channels, publication.data) == ("a1", ("room-7",), b'"d"')
    assert (request_key, is_batch) == (None, False)


async def test_the_idempotency_key_of_a_publish() -> None:
    """The header is the request key unless the body has one."""
    server = Server()
    await server.ask("POST", "/apps/a1/events", EVENT, {"x-idempotency-key": "h"})
    keyed = EVENT[:-1] + b',"idempotency_key":"b"}'
    await server.ask("POST", "/apps/a1/events", keyed, {"x-idempotency-key": "h"})
    assert [key for _, _, _, key, _ in server.service.calls] == ["h", "b"]


async def test_the_idempotency_key_of_a_batch() -> None:
    """The header covers the batch; the keys of its items stay theirs."""
    server = Server()
    body = b'{"batch":[%b,%b]}' % (EVENT, EVENT[:-1] + b',"idempotency_key":"b"}')
    await server.ask("POST", "/apps/a1/batch_events", body, {"x-idempotency-key": "h"})
    [(_, _, publications, request_key, is_batch)] = server.service.calls
    assert (request_key, is_batch) == ("h", True)
    assert [publication.idempotency_key for publication in publications] == [None, "b"]


async def test_a_refused_item_of_a_batch_publishes_nothing() -> None:
    """A batch with a malformed item is refused as a whole, naming the item."""
    server = Server()
    body = b'{"batch":[%b,{"name":"e"}]}' % EVENT
    response = await server.ask("POST", "/apps/a1/batch_events", body)
    assert told(response) == (400, "missing_channel_info")
    assert json.loads(response.body)["index"] == 1
    assert server.service.calls == []


@pytest.mark.parametrize("raised", [False, True])
async def test_a_fault_of_the_service_is_answered(raised: bool) -> None:
    """A fault is answered in the envelope, whether it is returned or raised."""
    server = Server()
    refused = fault.backpressure()
    if raised:
        server.service.raises["publish"] = refused
    else:
        server.service.answers["publish"] = refused
    response = await server.ask("POST", "/apps/a1/events", EVENT)
    assert told(response) == (503, "backpressure")
    assert response.headers == ((b"retry-after", b"1"),)


async def test_what_is_no_fault_is_left_to_the_web_room() -> None:
    """A full queue passes through: the web room answers, counts and logs such things."""
    server = Server()
    server.service.raises["publish"] = QueueFull("full")
    with pytest.raises(QueueFull):
        await server.ask("POST", "/apps/a1/events", EVENT)


# Signature and rate


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("", 400, "invalid_input"),
        ("auth_key=other", 404, "app_not_found"),
        ("auth_key=k1", 401, "auth_failed"),
    ],
)
async def test_an_unsigned_request_is_refused(query: str, status: int, code: str) -> None:
    """Nothing reaches the service without a signature."""
    server = Server()
    for route in server.routes:
        path = route.path.replace("{app_id}", "a1").replace("{", "").replace("}", "")
        response = await call(server.routes, route.method, path, EVENT, query)
        assert told(response) == (status, code)
    assert server.service.calls == []


async def test_a_tampered_body_is_refused() -> None:
    """The body is covered by the signature."""
    server = Server()
    query = signed_query("POST", "/apps/a1/events", EVENT, server.clock.now_ms() // 1000, APP)
    tampered = EVENT.replace(b'"d"', b'"x"')
    response = await call(server.routes, "POST", "/apps/a1/events", tampered, query)
    assert told(response) == (401, "auth_failed")


async def test_the_path_is_signed_as_sent_and_decoded_once() -> None:
    """Encoded names verify over the raw path and reach the service decoded."""
    server = Server()
    path = "/apps/a1/channels/private-ai%3Auser%2542/messages/m%3A1"
    assert told(await server.ask("GET", path)) == (400, "invalid_input")  # a percent sign
    await server.ask("GET", "/apps/a1/channels/private-ai%3Auser-42/messages/m%3A1")
    assert server.service.calls == [("messages.item", "a1", "private-ai:user-42", "m:1")]


async def test_an_app_that_asks_too_often_is_told_when_to_come_back() -> None:
    """Beyond the allowance the answer is 429 with Retry-After, until time has passed."""
    app = App(id="a1", key="k1", secret="s1", max_api_requests_per_minute=2)
    server = Server(app=app)
    for _ in range(2):
        assert (await server.ask("GET", "/apps/a1/channels")).status == 200
    response = await server.ask("GET", "/apps/a1/channels")
    assert told(response) == (429, "rate_limited")
    assert response.headers == ((b"retry-after", b"30"),)
    server.clock.advance(30_000)
    assert (await server.ask("GET", "/apps/a1/channels")).status == 200


async def test_unauthenticated_do_not_use_up_an_allowance() -> None:
    """Only signed requests count."""
    app = App(id="a1", key="k1", secret="s1", max_api_requests_per_minute=1)
    server = Server(app=app)
    for _ in range(3):
        await call(server.routes, "GET", "/apps/a1/channels", query="auth_key=k1")
    assert (await server.ask("GET", "/apps/a1/channels")).status == 200


def test_an_allowance_never_exceeds_a_minute() -> None:
    """A long silence does not add up to more than the limit."""
    allowance = Allowance(3, 0)
    taken = [allowance.take(3_600_000) for _ in range(4)]
    assert taken == [0, 0, 0, 20]


# Messages


@pytest.mark.parametrize("action", ["update", "delete", "append"])
async def test_a_mutation_and_its_answer(action: str) -> None:
    """A mutation reaches the service, and its version the client."""
    server = Server()
    body = b'{"data":"x"}'
    response = await server.ask("POST", f"{MESSAGE}/{action}", body)
    [(_, _, mutation)] = server.service.calls
    assert (mutation.verb, mutation.channel, mutation.message_serial) == (action, "room-7", "m1")
    assert (mutation.patch.name, mutation.patch.data) == (Change.KEEP, b'"x"')
    assert json.loads(response.body) == {
        "channel": "room-7",
        "message_serial": "m1",
        "action": action,
        "accepted": True,
        "version_serial": RESULT.version_serial,
        "history_serial": 18,
        "delivery_serial": 44,
        "status": "applied",
    }


async def test_a_repeated_mutation_says_so() -> None:
    """The answer to a known op_id is `duplicate` with the serials of the first."""
    server = Server()
    server.service.answers["mutate"] = type(RESULT)("v1", 1, 2, is_duplicate=True)
    response = await server.ask("POST", f"{MESSAGE}/append", b'{"data":"x","op_id":"o"}')
    assert json.loads(response.body)["status"] == "duplicate"


OFF = Channels(versioned_messages=VersionedMessages(enabled=False))
NO_HISTORY = Channels(
    versioned_messages=VersionedMessages(enabled=True), history=History(channels=["other"])
)
LONG = "x" * 129


@pytest.mark.parametrize(
    ("settings", "path", "body", "status"),
    [
        (OFF, f"/apps/a1/channels/b%20d/messages/{LONG}/append", b'{"data":""}', 400),
        (OFF, f"/apps/a1/channels/b%20d/messages/{LONG}/append", b'{"data":"x"}', 400),
        (OFF, f"/apps/a1/channels/c/messages/{LONG}/append", b'{"data":"x"}', 422),
        (NO_HISTORY, f"/apps/a1/channels/c/messages/{LONG}/append", b'{"data":"x"}', 422),
        (VERSIONED, f"/apps/a1/channels/c/messages/{LONG}/append", b'{"data":"x"}', 400),
    ],
)
async def test_the_order_of_checks(settings: Channels, path: str, body: bytes, status: int) -> None:
    """Body, then channel name, then the feature, then the serial's syntax (channels 5.7)."""
    server = Server(settings)
    response = await server.ask("POST", path, body)
    assert response.status == status
    error = json.loads(response.body)["error"]
    if body == b'{"data":""}':
        assert error == "append request data must not be empty"
    elif "b%20d" in path:
        assert "channel name" in error
    elif status == 422:
        off = (
            "channels.versioned_messages.enabled"
            if settings is OFF
            else "channels.history.channels"
        )
        assert error == f"Versioned messages are disabled for channel 'c' (setting {off})"
    else:
        assert error == "message_serial must be at most 128 bytes"
    assert server.service.calls == []


@pytest.mark.parametrize("settings", [OFF, NO_HISTORY])
async def test_without_versions_no_message_route_answers(settings: Channels) -> None:
    """Switched off, in general or for the channel, every message route is 422."""
    server = Server(settings)
    for action in ("update", "delete", "append"):
        response = await server.ask("POST", f"{MESSAGE}/{action}", b'{"data":"x"}')
        assert told(response) == (422, "feature_disabled")
    for path in (MESSAGE, f"{MESSAGE}/versions", f"{MESSAGE}/summary"):
        assert told(await server.ask("GET", path)) == (422, "feature_disabled")
    assert told(await server.ask("POST", f"{MESSAGE}/summary", b"{}")) == (422, "feature_disabled")


async def test_reads_of_messages() -> None:
    """Latest state, versions and summary are asked for by channel and serial."""
    server = Server()
    await server.ask("GET", MESSAGE)
    await server.ask("GET", f"{MESSAGE}/versions", query={"limit": "2", "cursor": "v1"})
    await server.ask("GET", f"{MESSAGE}/summary")
    await server.ask("POST", f"{MESSAGE}/summary", b'{"socket_id":"1.2"}')
    await server.ask("POST", f"{MESSAGE}/summary")
    assert server.service.calls == [
        ("messages.item", "a1", "room-7", "m1"),
        ("messages.versions", "a1", "room-7", "m1", VersionsQuery(2, "newest_first", "v1")),
        ("messages.summary", "a1", "room-7", "m1"),
        ("emit_summary", "a1", "room-7", "m1", "1.2"),
        ("emit_summary", "a1", "room-7", "m1", None),
    ]


# History


async def test_history_and_its_administration() -> None:
    """Each history route reaches its own method."""
    server = Server()
    base = "/apps/a1/channels/room-7/history"
    await server.ask(
        "GET", base, query={"limit": "500", "direction": "oldest_first", "end_serial": "9"}
    )
    await server.ask("GET", f"{base}/state")
    confirmed = {"confirm_channel": "room-7", "confirm_operation": "reset", "reason": "r"}
    await server.ask("POST", f"{base}/reset", json.dumps(confirmed).encode())
    purge = {**confirmed, "confirm_operation": "purge", "mode": "before_serial"}
    body = json.dumps({**purge, "before_serial": 5, "requested_by": "me"}).encode()
    await server.ask("POST", f"{base}/purge", body)
    query = HistoryQuery(limit=100, direction="oldest_first", end_serial=9)
    assert server.service.calls == [
        ("history_api.page", "a1", "room-7", query),
        ("history_api.state", "a1", "room-7"),
        ("history_api.reset", "a1", "room-7", "r", None),
        ("history_api.purge", "a1", "room-7", "before_serial", 5, "r", "me"),
    ]


async def test_a_channel_without_history() -> None:
    """A channel that keeps no history says so in the contract's words."""
    server = Server(NO_HISTORY)
    response = await server.ask("GET", "/apps/a1/channels/room-7/history")
    assert told(response) == (422, "feature_disabled")
    wanted = "Durable history is disabled by policy for channel 'room-7'"
    assert json.loads(response.body)["error"] == f"{wanted} (setting channels.history.channels)"


# Channels and users


async def test_channels_and_users() -> None:
    """Each route about who is there reaches its own method."""
    server = Server()
    await server.ask(
        "GET", "/apps/a1/channels", query={"filter_by_prefix": "presence-", "info": "user_count"}
    )
    await server.ask("GET", "/apps/a1/channels/room-7", query={"info": "subscription_count"})
    await server.ask("GET", "/apps/a1/channels/presence-x/users")
    for operation in ("terminate_connections", "force_reconnect"):
        response = await server.ask("POST", f"/apps/a1/users/ana%2F1/{operation}", b"{}")
        assert response.body == b'{"ok":true}'
    await server.ask("POST", "/apps/a1/revocations", b'{"jti":"j"}')
    assert server.service.calls == [
        ("channels", "a1", "presence-", frozenset({"user_count"})),
        ("channel", "a1", "room-7", frozenset({"subscription_count"})),
        ("channel_users", "a1", "presence-x"),
        ("terminate", "a1", "ana/1"),
        ("force_reconnect", "a1", "ana/1"),
        ("revoke", "a1", "j", None),
    ]


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/apps/a1/channels", {"info": "user_count"}),
        ("/apps/a1/channels", {"info": "user_count", "filter_by_prefix": "private-"}),
        ("/apps/a1/channels/room-7", {"info": "subscription_count,user_count"}),
        ("/apps/a1/channels/room-7/users", {}),
        ("/apps/a1/channels/b%20d", {}),
    ],
)
async def test_users_are_only_known_of_presence_channels(path: str, query: dict[str, str]) -> None:
    """Asking for users where there are none is 400."""
    server = Server()
    assert told(await server.ask("GET", path, query=query)) == (400, "invalid_input")
    assert server.service.calls == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/apps/a1/channels/presence-x/presence/history"),
        ("GET", "/apps/a1/channels/presence-x/presence/history/snapshot"),
        ("POST", "/apps/a1/channels/presence-x/presence/history/reset"),
        ("POST", f"{MESSAGE}/annotations"),
        ("GET", f"{MESSAGE}/annotations"),
        ("DELETE", f"{MESSAGE}/annotations/s"),
        ("POST", "/apps/a1/push/publish"),
        ("GET", "/apps/a1/push/publish/p/status"),
        ("DELETE", "/apps/a1/push/scheduled/p"),
    ],
)
async def test_what_is_not_offered(method: str, path: str) -> None:
    """What the SDK could ask and this server has not is 422, not 404."""
    server = Server()
    body = b"{}" if method == "POST" else b""
    assert told(await server.ask(method, path, body)) == (422, "feature_disabled")
