"""Runs from Python against a real server: how they end, and who stops them (runs 9)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from support.channels.peer import APP, ChannelsNode, channels_server, token, unique, until
from support.web.relay import Relay
from tidelog.channels.upkeep import streams
from tidelog.client import (
    ChannelClient,
    ChannelOffline,
    ChannelPublisher,
    EventRefused,
    Message,
    PublishRefused,
    Run,
    RunCancelled,
    RunFailed,
    StoredMessage,
    StreamEnded,
)
from tidelog.client.backoff import Backoff
from tidelog.client.channels import token_buffer
from tidelog.testing.clock import FakeClock
from tidelog.testing.postgresql import create_database

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUICK = Backoff(first=0.01, most=0.05)
WAIT_SECONDS = 60.0
NOWHERE = 1
"""A port at which nobody listens."""
CAN_PUBLISH = {"*": ["subscribe", "publish", "history"]}
CAN_CANCEL = {"*": ["subscribe", "publish", "run_cancel_any"]}
Json = dict[str, Any]


@pytest.fixture(scope="module", params=("sqlite", "postgresql"))
def engine(request: pytest.FixtureRequest) -> str:
    """Name of the engine; every test runs on both."""
    name: str = request.param
    return name


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(
    engine: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[ChannelsNode]:
    """A server; tests use channels of their own."""
    store = ""
    if engine == "postgresql":
        store = await create_database(request.getfixturevalue("postgresql_server"))
    async with channels_server(
        tmp_path_factory.mktemp("data"),
        store,
        apps=(msgspec.structs.replace(APP, max_client_events_per_second=10_000),),
        connection_recovery={"max_buffer_size": 100},
    ) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def publisher(node: ChannelsNode) -> AsyncIterator[ChannelPublisher]:
    """The agent."""
    async with publish_to(f"127.0.0.1:{node.port}") as made:
        yield made


def publish_to(address: str, **options: Any) -> ChannelPublisher:
    """A publisher of the first app."""
    options = {"backoff": QUICK, "attempts": 1000, **options}
    return ChannelPublisher(f"http://{address}", APP.id, APP.key, APP.secret, **options)


def user(node: ChannelsNode, client_id: str, capability: object = None) -> ChannelClient:
    """Somebody with a token."""
    text = token(client_id, CAN_PUBLISH if capability is None else capability)
    return ChannelClient(node.ws_url, APP.key, token=text, backoff=QUICK)


async def story(publisher: ChannelPublisher, channel: str) -> list[StoredMessage]:
    """All messages of a channel, oldest first."""
    return [each async for each in publisher.messages(channel, direction="oldest_first")]


def said(message: Message) -> Json:
    """The transport headers of a message without those that differ from run to run."""
    transport = dict(message.extras["ai"]["transport"])
    transport.pop("invocation-id", None)
    return transport


async def words(count: int = 1_000_000, pause: float = 0.001) -> AsyncIterator[str]:
    """A model that talks without end, or nearly."""
    for number in range(count):
        yield f"w{number} "
        await asyncio.sleep(pause)


async def test_run_check_18_a_whole_run(publisher: ChannelPublisher) -> None:
    """Tokens, a tool, a status that changes, more tokens; each event says whose run it is."""
    channel = unique("ai:room")
    async with publisher.run(
        channel, client_id="ana", run_id="r1", transport={"model": "m"}
    ) as run:
        assert (run.cancelled, run.reason, run.message_serial) == (False, None, None)
        await run.write("")
        await run.status("thinking")
        for token_ in ("Hel", "lo"):
            await run.write(token_)
        first = run.message_serial
        async with run.tool("search", {"q": "tides"}, call_id="c1") as call:
            assert run.message_serial is None
            [*_, shown] = await story(publisher, channel)
            assert (shown.json(), shown.status) == (
                {"name": "search", "arguments": {"q": "tides"}},
                "streaming",
            )
            call.result = ["moon"]
        await run.status("writing")
        await run.write("!")
        await run.new_message()
        await run.write("Bye")
    assert run.reason == "complete"
    start, status, hello, tool, mark, bye, end = await story(publisher, channel)
    whose = {"run-id": "r1", "run-client-id": "ana", "model": "m"}
    assert (start.name, said(start)) == ("ai-run-start", whose)
    assert (status.name, status.data) == ("ai-output", "writing")
    assert status.extras["ai"]["codec"] == {"type": "status"}
    text = {**whose, "stream": "true", "role": "assistant", "status": "complete"}
    assert (hello.data, said(hello), hello.serial) == ("Hello", text, first)
    assert tool.json() == {"name": "search", "arguments": {"q": "tides"}, "result": ["moon"]}
    assert said(tool) == {**whose, "stream": "false", "role": "tool", "status": "complete"}
    codec = {"type": "tool-call", "toolName": "search", "toolCallId": "c1"}
    assert tool.extras["ai"]["codec"] == codec
    assert (mark.data, bye.data, said(bye)) == ("!", "Bye", text)
    assert (end.name, said(end)) == ("ai-run-end", {**whose, "run-reason": "complete"})
    ids = {m.extras["ai"]["transport"]["invocation-id"] for m in (start, hello, tool, end)}
    assert ids == {run.invocation_id}
    with pytest.raises(StreamEnded):
        await run.write("late")
    with pytest.raises(StreamEnded):
        async with run:
            pass


async def test_run_check_18_runs_that_fail(publisher: ChannelPublisher) -> None:
    """An exception leaves the block; others are told a code, and what `RunFailed` says."""
    channel = unique("ai:room")

    async def fail(run: Run, error: Exception) -> None:
        async with run:
            await run.write("half")
            raise error

    errors: tuple[tuple[Exception, Json], ...] = (
        (ZeroDivisionError("a secret"), {"error-code": "run_failed"}),
        (
            RunFailed("model_busy", "Try later"),
            {"error-code": "model_busy", "error-message": "Try later"},
        ),
        (RunFailed("model_busy"), {"error-code": "model_busy"}),
    )
    for error, told in errors:
        run = publisher.run(channel)
        with pytest.raises(type(error)):
            await fail(run, error)
        assert run.reason == "error"
        *_, message, end = await story(publisher, channel)
        assert (message.data, message.status) == ("half", "complete")
        assert told.items() <= said(message).items()
        whose = {"run-id": run.run_id, "run-client-id": ""}
        assert said(end) == {**whose, "run-reason": "error", **told}
    with pytest.raises(ZeroDivisionError):
        async with publisher.run(channel):
            raise ZeroDivisionError  # before it said anything
    *_, start, end = await story(publisher, channel)
    assert (start.name, end.name) == ("ai-run-start", "ai-run-end")
    async with publisher.run(channel) as run:
        with pytest.raises(ZeroDivisionError):
            async with run.tool("divide", [1, 0]):
                raise ZeroDivisionError
        await run.write("I cannot do that")
    *_, tool, message, end = await story(publisher, channel)
    assert said(tool)["error-code"] == "tool_failed"
    assert (tool.status, message.status, said(end)["run-reason"]) == (*["complete"] * 2, "complete")

    begun = asyncio.Event()

    async def cut_off() -> None:
        async with publisher.run(channel) as run:
            await run.write("x")
            begun.set()
            await asyncio.sleep(WAIT_SECONDS)

    task = asyncio.create_task(cut_off())
    await begun.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    *_, message, end = await story(publisher, channel)
    assert (message.status, said(end)["run-reason"]) == ("cancelled", "cancelled")


async def test_run_check_18_what_the_server_refuses(publisher: ChannelPublisher) -> None:
    """A message that was ended by others ends the run with an error; nothing is hidden."""
    channel = unique("ai:room")
    run = publisher.run(channel)

    async def write_on() -> None:
        async with run:
            await run.write("x")
            serial = run.message_serial or ""
            extras = {"ai": {"transport": {"status": "cancelled"}}}
            await publisher.update(channel, serial, extras=extras)
            await run.write("y")

    with pytest.raises(PublishRefused, match="terminal"):
        await write_on()
    assert run.reason == "error"
    end = (await story(publisher, channel))[-1]
    assert (end.name, said(end)["run-reason"]) == ("ai-run-end", "error")
    with pytest.raises(PublishRefused) as refused:
        async with publisher.run(channel, run_id="x" * 257):
            pass
    assert refused.value.ai_code == 104001


async def test_run_check_18_suspended_and_resumed(publisher: ChannelPublisher) -> None:
    """The same run under another invocation."""
    channel = unique("ai:room")
    async with publisher.run(channel, run_id="r", client_id="ana") as run:
        await run.write("May I?")
        run.suspend()
    assert run.reason == "suspended"
    async with publisher.run(channel, run_id="r", client_id="ana", resume=True) as again:
        await again.write("Thanks")
    names = [message.name for message in await story(publisher, channel)]
    assert names == [
        *("ai-run-start", "ai-output", "ai-run-suspend"),
        *("ai-run-resume", "ai-output", "ai-run-end"),
    ]
    assert run.invocation_id != again.invocation_id


async def test_run_check_19_who_stops_a_run(
    node: ChannelsNode, publisher: ChannelPublisher
) -> None:
    """Two runs in one channel: each cancel ends those it means, and no other."""
    async with (
        user(node, "ana") as ana,
        user(node, "bob") as bob,
        user(node, "admin", CAN_CANCEL) as admin,
        contextlib.AsyncExitStack() as stack,
    ):
        for sender, form, stopped in (
            (ana, {"run_id": "of-ana"}, "ana"),
            (ana, {"own": True}, "ana"),
            (ana, {"client_id": "ana"}, "ana"),
            (bob, {"own": True}, "bob"),
            (admin, {"run_id": "of-bob"}, "bob"),
            (admin, {"client_id": "ana"}, "ana"),
            (admin, {"all_runs": True}, "ana bob"),
            (publisher, {"run_id": "of-ana"}, "ana"),
            (publisher, {"client_id": "bob"}, "bob"),
            (publisher, {"all_runs": True}, "ana bob"),
        ):
            channel = unique("ai:room")
            runs: dict[str, Run] = {}

            async def work(owner: str, channel: str, runs: dict[str, Run]) -> str | None:
                async with publisher.run(channel, client_id=owner, run_id=f"of-{owner}") as run:
                    runs[owner] = run
                    await run.write_all(words())
                return run.reason

            tasks = {
                owner: asyncio.create_task(work(owner, channel, runs)) for owner in ("ana", "bob")
            }
            for task in tasks.values():
                stack.callback(task.cancel)
            await until(lambda runs=runs: len(runs) == 2)
            for refused in ({"run_id": "of-ana"}, {"client_id": "ana"}, {"all_runs": True}):
                with pytest.raises(EventRefused) as told:
                    await bob.cancel(channel, **refused)
                assert (told.value.code, told.value.ai_code) == ("ai_event_not_permitted", 104003)
            await sender.cancel(channel, **form)
            async with asyncio.timeout(WAIT_SECONDS):
                for owner in stopped.split():
                    assert await tasks[owner] == "cancelled"
            left = set(tasks) - set(stopped.split())
            assert not any(runs[owner].cancelled for owner in left)
            await publisher.cancel(channel, all_runs=True)
            await asyncio.gather(*tasks.values())
            ends = [m for m in await story(publisher, channel) if m.name == "ai-run-end"]
            assert len(ends) == 2


async def test_run_check_19_how_a_writer_notices(publisher: ChannelPublisher) -> None:
    """By a flag, by waiting, by its writes, and while its model or its tool is silent."""
    channel = unique("ai:room")
    async with publisher.run(channel, run_id="flag") as run:
        await run.write("x")
        await publisher.cancel(channel, "flag")
        async with asyncio.timeout(WAIT_SECONDS):
            await run.wait_cancelled()
        assert run.cancelled
        with pytest.raises(RunCancelled) as told:
            await run.write("y")
        assert told.value.run is run
        for refused in (run.status("z"), run.new_message()):
            with pytest.raises(RunCancelled):
                await refused
    assert run.reason == "cancelled", "the block ended as if nothing had happened"

    closed = []

    async def silent() -> AsyncIterator[str]:
        try:
            yield "once"
            await asyncio.sleep(WAIT_SECONDS)
        finally:
            closed.append(True)

    async def stop(run_id: str) -> None:
        while (await story(publisher, channel))[-1].name != "ai-output":  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        await publisher.cancel(channel, run_id)

    stopping = asyncio.create_task(stop("silent"))
    async with asyncio.timeout(WAIT_SECONDS), publisher.run(channel, run_id="silent") as run:
        await run.write_all(silent())
        raise AssertionError("not reached")
    await stopping
    assert (run.reason, closed) == ("cancelled", [True])
    stopping = asyncio.create_task(stop("tool"))
    async with asyncio.timeout(WAIT_SECONDS), publisher.run(channel, run_id="tool") as run:
        async with run.tool("wait"):
            await run.wait_cancelled()
        raise AssertionError("not reached")
    await stopping
    *_, tool, _, end = await story(publisher, channel)
    assert (tool.status, said(end)["run-reason"]) == ("cancelled", "cancelled")
    run = publisher.run(channel, run_id="other")

    async def be_stopped() -> None:
        async with run:
            await publisher.cancel(channel, "other")
            await run.wait_cancelled()
            raise ZeroDivisionError  # what the model's client raised when it was stopped

    with pytest.raises(ZeroDivisionError):
        await be_stopped()
    assert run.reason == "cancelled"


async def test_run_check_20_a_cancel_before_the_start(
    node: ChannelsNode, publisher: ChannelPublisher
) -> None:
    """The owner's and the application's count; another's does not, nor does what meant others."""
    channel = unique("private-ai")
    lets = {channel: ["publish"]}
    async with (
        user(node, "ana", lets) as ana,
        user(node, "bob", lets) as bob,
        user(node, "admin", {channel: ["publish", "run_cancel_any"]}) as admin,
    ):
        await ana.cancel(channel, "by-ana")
        await bob.cancel(channel, "by-bob")
        await ana.cancel(channel, own=True)
        await admin.cancel(channel, "by-admin")
        await admin.cancel(channel, all_runs=True)
        await publisher.cancel(channel, "by-app")
        for run_id, is_cancelled in (
            ("by-ana", True),
            ("by-app", True),
            ("by-bob", False),
            ("by-admin", False),
            ("by-nobody", False),
        ):
            async with publisher.run(channel, client_id="ana", run_id=run_id) as run:
                assert run.cancelled is is_cancelled, run_id
                await run.write("x")
            assert run.reason == ("cancelled" if is_cancelled else "complete")
        async with publisher.run(channel, run_id="by-ana") as run:
            assert not run.cancelled, "nobody's run is not hers"


async def test_run_check_20_a_cancel_at_the_start(
    node: ChannelsNode, publisher: ChannelPublisher
) -> None:
    """Whichever of the two is first, the run ends."""
    async with user(node, "ana") as ana:
        for number in range(20):
            channel = unique("ai:room")
            run = publisher.run(channel, client_id="ana", run_id="r")

            async def work(run: Run = run) -> None:
                async with run:
                    await run.write_all(words())

            async with asyncio.timeout(WAIT_SECONDS):
                await asyncio.gather(work(), ana.cancel(channel, "r"))
            assert run.reason == "cancelled", number


async def test_run_check_21_a_cancel_while_the_agent_is_cut_off(
    node: ChannelsNode, publisher: ChannelPublisher
) -> None:
    """It is heard after a resume; and after a reset, which loses it, it is read."""
    for missed in (1, 150):
        channel = unique("ai:room")
        async with Relay(node.port) as relay, publish_to(relay.address) as agent:
            async with agent.run(channel, client_id="ana", run_id="r") as run:
                await run.write("x")
                relay.target = NOWHERE
                relay.cut()
                chat = [str(number) for number in range(missed)]
                await asyncio.gather(*(publisher.publish(channel, "chat", each) for each in chat))
                await publisher.cancel(channel, "r")
                await asyncio.gather(*(publisher.publish(channel, "chat", each) for each in chat))
                relay.target = node.port
                async with asyncio.timeout(WAIT_SECONDS):
                    await run.wait_cancelled()
            assert run.reason == "cancelled"


async def test_run_check_22_what_a_client_publishes(
    node: ChannelsNode, publisher: ChannelPublisher
) -> None:
    """Once, however often the connection is lost; refused with a code; or not, and it says so."""
    channel = unique("presence-ai")

    async def authorize(name: str, socket_id: str) -> Any:
        return publisher.authorization(name, socket_id, user_id="ana")

    async with Relay(node.port) as relay:
        url = f"ws://{relay.address}"
        async with (
            ChannelClient(url, APP.key, authorize=authorize, backoff=QUICK) as ana,
            ana.subscribe(channel),
        ):
            for number in range(30):
                key = f"m{number}"
                publishing = asyncio.create_task(
                    ana.publish(channel, "ai-input", {"n": number}, message_id=key)
                )
                if number % 3 == 0:
                    await asyncio.sleep(number / 2000)  # before it is sent, or after
                    relay.cut()
                async with asyncio.timeout(WAIT_SECONDS):
                    assert await publishing == key
            kept = await story(publisher, channel)
            assert [message.json()["n"] for message in kept] == list(range(30))
            assert {said(message)["input-client-id"] for message in kept} == {"ana"}
            assert await ana.publish(channel, "ai-input", {"n": 0}, message_id="m0") == "m0"
            with pytest.raises(EventRefused) as told:
                await ana.publish(channel, "ai-input", "other", message_id="m0")
            assert told.value.code == "invalid_input"
            with pytest.raises(EventRefused) as told:
                await ana.publish(channel, "ai-output", "x")
            assert told.value.ai_code == 104003
            with pytest.raises(EventRefused, match="payload_too_large"):
                await ana.publish(channel, "ai-input", "x" * 70_000)
            await ana.publish(channel, "ai-input", "still there")
            with pytest.raises(ValueError, match="ai-"):
                await ana.publish(channel, "chat", "x")
            with pytest.raises(ValueError, match="exactly one"):
                await ana.cancel(channel, "r", own=True)
            with pytest.raises(ValueError, match="128"):
                await ana.publish(channel, "ai-input", "x", message_id="")
            relay.target = NOWHERE
            relay.cut()
            late = asyncio.create_task(ana.publish(channel, "ai-input", "never"))
            await asyncio.sleep(0.05)
        with pytest.raises(ChannelOffline):
            await late
        assert (await story(publisher, channel))[-1].data == "still there"


async def test_run_check_22_an_agent_with_a_socket(
    node: ChannelsNode, publisher: ChannelPublisher
) -> None:
    """A token of `publisher.token` makes one."""
    channel = unique("ai:room")
    text = publisher.token("bot", {channel: ["publish"]}, is_agent=True)
    async with ChannelClient(node.ws_url, APP.key, token=text, backoff=QUICK) as bot:
        await bot.publish(channel, "ai-output", "whole", extras={"ai": {"codec": {"a": "b"}}})
    [message] = await story(publisher, channel)
    assert (message.name, message.data, message.client_id) == ("ai-output", "whole", "bot")


async def test_run_check_23_a_silent_run_stays_open(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text and tools are kept open while their writer lives; without it the server ends the run."""
    monkeypatch.setattr(token_buffer, "KEEP_OPEN_S", 0.05)
    monkeypatch.setattr(streams, "SWEEP_SECONDS", 0.05)
    clock, channel = FakeClock(), unique("ai:room")
    async with channels_server(tmp_path, clock=clock) as node:
        node.api.now = lambda: clock.now_ms() / 1000
        async with publish_to(f"127.0.0.1:{node.port}", attempts=1) as agent:

            async def idle(serial: str) -> None:
                """Two minutes pass, and the server hears from the writer every 15 s."""
                for _ in range(8):
                    clock.advance(15_000)
                    before = len((await node.api.versions(channel, serial))["items"])
                    now = before
                    async with asyncio.timeout(WAIT_SECONDS):
                        while now == before:
                            now = len((await node.api.versions(channel, serial))["items"])

            monkeypatch.setattr(
                "tidelog.client.channels.http.time.time", lambda: clock.now_ms() / 1000
            )
            async with agent.run(channel, run_id="r") as run:
                await run.write("x")
                await idle(run.message_serial or "")
                async with run.tool("slow"):
                    await idle((await story(agent, channel))[-1].serial)
                await run.write("y")
            assert run.reason == "complete"
