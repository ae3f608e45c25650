"""The client core's connection: opened, refused, lost; and what the application hears (sync 17)."""

import pytest

from support.sync.client_core import Bench, committed, value
from tidelog.client.sync.actions import Close, Send
from tidelog.client.sync.changes import Change
from tidelog.client.sync.messages import Json

# Connecting


def test_connect_says_who_and_from_where(bench: Bench) -> None:
    """The handshake carries token, identity, profile and the smallest cursor in use (sync D58)."""
    bench.store.store_page([], ["p"], 8)
    bench.core.sync(["q"])
    bench.store.store_page([], ["q"], 5)
    bench.core.connect("secret")
    [(kind, payload)] = bench.sent()
    assert kind == "connect"
    assert payload == {
        "token": "secret",
        "client_id": "ada",
        "last_committed_id": 5,
        "supported_profiles": ["compatibility"],
        "required_profile": "compatibility",
    }
    assert bench.core.state == "connecting"


def test_messages_have_whole_envelopes(bench: Bench) -> None:
    """All five fields, and no `msg_id` twice."""
    bench.connect()
    messages = [action.message for action in bench.core.actions() if isinstance(action, Send)]
    assert len(messages) == 2
    assert len({message["msg_id"] for message in messages}) == 2
    for message in messages:
        assert message.keys() == {"type", "msg_id", "timestamp", "payload", "protocol_version"}
        assert message["protocol_version"] == "1.0"


def test_a_session_starts_with_a_sync_that_subscribes(bench: Bench) -> None:
    """After `connected` the partitions in use are fetched and subscribed to in one request."""
    bench.connect()
    kind, payload = bench.sent()[-1]
    assert kind == "sync"
    assert payload["partitions"] == payload["subscription_partitions"] == ["p"]
    assert payload["since_committed_id"] == 0
    assert [data["state"] for data in bench.told("status_changed")] == ["connecting", "active"]


@pytest.mark.parametrize(
    "granted",
    [{"profile": "canonical"}, {"profile": "compatibility", "tree_policy": "loose"}],
)
def test_what_the_client_cannot_do_ends_it(bench: Bench, granted: Json) -> None:
    """Another profile or tree policy is unsupported, and connecting again would not help."""
    bench.connect(capabilities=granted)
    assert bench.kinds() == ["connect", "close"]
    assert bench.core.halted == "profile_unsupported"


@pytest.mark.parametrize(
    "code", ["auth_failed", "profile_unsupported", "protocol_version_unsupported"]
)
def test_final_errors_halt(bench: Bench, code: str) -> None:
    """No automatic reconnect where the same connect would fail again; the next one may try."""
    bench.core.connect("old")
    bench.error(code)
    assert bench.kinds() == ["connect", "close"]
    assert bench.core.halted == code
    bench.core.disconnected()
    bench.core.connect("new")
    assert bench.core.halted is None


def test_a_server_error_drops_the_connection_only(bench: Bench) -> None:
    """`server_error`: reconnect and retry."""
    bench.ready()
    bench.error("server_error")
    assert bench.kinds() == ["close"]
    assert bench.core.halted is None


def test_stopping_says_goodbye(bench: Bench) -> None:
    """`stop` sends `disconnect` and closes."""
    bench.ready()
    bench.core.stop()
    assert bench.sent() == [
        ("disconnect", {"reason": "client_shutdown"}),
        ("close", {"reason": "client_shutdown"}),
    ]


def test_nonsense_from_the_server_ends_the_connection(bench: Bench) -> None:
    """A message that is none cannot be skipped: it may have been a commit."""
    bench.ready()
    bench.say("event_broadcast", {"id": 5})
    assert bench.kinds() == ["close"]
    assert bench.codes() == ["bad_message"]
    bench.broadcast(1, value("a"))
    assert list(bench.store.rows()) == []


def test_unknown_types_and_members_are_ignored(bench: Bench) -> None:
    """Additive protocol versions do not disturb."""
    bench.ready()
    bench.say("news", {"a": 1})
    bench.say("event_broadcast", committed(1, value("a")) | {"unknown": "member"})
    assert bench.sent() == []
    assert bench.settings() == {"a": 1}


# The application's ear


def test_listeners_can_act_and_leave(bench: Bench) -> None:
    """A listener may submit; what that changes is told afterwards; unsubscribing ends it."""
    bench.ready()
    order: list[str] = []

    def react(change: Change) -> None:
        order.append(change.name)
        if change.name == "broadcast":
            bench.draft(value("b"), "reaction")
            bench.core.report("mine", "text")

    leave = bench.core.on("broadcast", react)
    bench.core.on("error", react)
    bench.broadcast(1, value("a"))
    assert order == ["broadcast", "error"]
    assert bench.submitted() == [["reaction"]]
    leave()
    bench.broadcast(2, value("a"))
    assert order == ["broadcast", "error"]


def test_changes_name_their_partitions(bench: Bench) -> None:
    """An application refreshes only the views that a change concerns."""
    bench.ready()
    bench.broadcast(1, value("a"), "p", "q")
    assert bench.changes[-1].partitions == ("p", "q")


def test_closing_is_asked_for_once(bench: Bench) -> None:
    """After a close nothing more is sent or read until the connection is gone."""
    bench.ready()
    bench.error("server_error")
    bench.error("server_error")
    bench.draft(value("a"))
    assert [type(action) for action in bench.core.actions()] == [Close]
