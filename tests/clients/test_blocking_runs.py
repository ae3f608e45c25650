"""Runs of a program without an event loop: how they end, and who stops them (runs 9)."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from support.channels.peer import APP, unique
from tidelog.client import (
    BlockingChannelPublisher,
    BlockingRun,
    RunCancelled,
    RunFailed,
    StoredMessage,
    SubscriptionRefused,
)
from tidelog.testing.process import ServerProcess

WAIT_SECONDS = 60.0


@pytest.fixture
def agent(server: ServerProcess) -> Iterator[BlockingChannelPublisher]:
    """Whoever runs them; its thread ends with it."""
    with BlockingChannelPublisher(server.url, APP.id, APP.key, APP.secret) as publisher:
        yield publisher
    assert "tidelog-runs" not in {thread.name for thread in threading.enumerate()}


def told(agent: BlockingChannelPublisher, room: str) -> list[StoredMessage]:
    """What a channel was told, in order."""
    return list(agent.messages(room, direction="oldest_first"))


def transport(message: StoredMessage) -> dict[str, Any]:
    """Its transport headers."""
    found: dict[str, Any] = message.extras["ai"]["transport"]
    return found


def test_a_run_writes_calls_a_tool_and_completes(agent: BlockingChannelPublisher) -> None:
    """Start, text, tool with its result, text again, status, end."""
    room = unique()
    with agent.run(room, client_id="ana", run_id="run-1") as run:
        run.write_all(["The ", "tide "])
        with run.tool("search", {"q": "moon"}) as call:
            call.result = {"found": 1}
        run.write("turns")
        run.status("checking")
        run.new_message()
    assert (run.reason, run.cancelled, run.run_id) == ("complete", False, "run-1")
    messages = told(agent, room)
    assert [message.name for message in messages] == [
        "ai-run-start",
        *["ai-output"] * 4,
        "ai-run-end",
    ]
    first, tool, second, status = messages[1:5]
    assert [first.data, second.data, status.data] == ["The tide ", "turns", "checking"]
    assert tool.json()["result"] == {"found": 1}
    assert [each.status for each in (first, tool, second)] == ["complete"] * 3
    assert transport(messages[-1])["run-reason"] == "complete"


def test_somebody_stops_it(agent: BlockingChannelPublisher) -> None:
    """A model is not asked for more; the block ends, and the run as cancelled."""
    room = unique()
    asked = 0

    def model(run: BlockingRun) -> Iterator[str]:
        nonlocal asked
        for number in range(1000):
            asked += 1
            yield f"w{number} "
            if number == 2:
                agent.cancel(room, run.run_id)
                assert run.wait_cancelled(WAIT_SECONDS)

    with agent.run(room, client_id="ana") as run:
        assert not run.wait_cancelled(0.01)
        run.write_all(model(run))
        raise AssertionError("it went on")
    assert (run.reason, run.cancelled, asked) == ("cancelled", True, 4)
    with pytest.raises(RunCancelled):
        run.check()
    messages = told(agent, room)
    [output] = [message for message in messages if message.name == "ai-output"]
    assert (output.data, output.status) == ("w0 w1 w2 ", "cancelled")
    assert transport(messages[-1])["run-reason"] == "cancelled"


def test_failures_and_interrupts_are_told(agent: BlockingChannelPublisher) -> None:
    """An exception leaves the block as it is; Ctrl-C is no failure."""
    room = unique()
    with pytest.raises(RunFailed, match="busy"), agent.run(room) as run:
        fail(run, RunFailed("model_busy", "Try later"))
    assert run.reason == "error"
    ended = transport(told(agent, room)[-1])
    assert (ended["run-reason"], ended["error-code"]) == ("error", "model_busy")
    with suppress(KeyboardInterrupt), agent.run(room) as run:
        fail(run, KeyboardInterrupt())
    assert run.reason == "cancelled"
    assert told(agent, room)[-2].status == "cancelled"
    with agent.run(room, run_id="later") as run:
        run.suspend()
    assert (run.reason, told(agent, room)[-1].name) == ("suspended", "ai-run-suspend")
    with pytest.raises(ZeroDivisionError), agent.run(room) as run, run.tool("divide"):
        _ = 1 // 0
    assert run.reason == "error"
    with pytest.raises(SubscriptionRefused), agent.run("no spaces"):
        pass


def fail(run: BlockingRun, error: BaseException) -> None:
    """Write something, then fail."""
    run.write("half")
    raise error
