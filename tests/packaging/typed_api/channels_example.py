"""What a type checker knows of the channel clients; checked, never run."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal, assert_type

from tidelog.client import (
    Authorization,
    BlockingChannelPublisher,
    BlockingMessageStream,
    BlockingRun,
    Channel,
    ChannelClient,
    ChannelInfo,
    ChannelPublisher,
    Message,
    MessageStream,
    MessageVersion,
    Page,
    PublishRefused,
    Receipt,
    Reset,
    Run,
    StoredMessage,
    ToolCall,
    UserAuthorization,
)


async def publishing(tokens: Sequence[str]) -> None:
    """The server's side: receipts, and a message that grows."""
    async with ChannelPublisher("http://127.0.0.1:8080", "id", "key", "secret") as app:
        assert_type(app, ChannelPublisher)
        receipt = await app.publish("room", "said", {"text": "hi"}, message_id="1")
        assert_type(receipt, Receipt)
        assert_type(receipt.message_serial, str | None)
        assert_type(receipt.history_serial, int | None)
        assert_type(receipt.is_duplicate, bool)
        if receipt.message_serial is not None:
            assert_type(await app.append("room", receipt.message_serial, "!"), Receipt)
            assert_type(await app.update("room", receipt.message_serial, clear=["data"]), Receipt)
            assert_type(await app.delete("room", receipt.message_serial), Receipt)
        async with app.stream("room", "answer") as answer:
            assert_type(answer, MessageStream)
            for token in tokens:
                await answer.write(token)
            assert_type(answer.message_serial, str)
        assert_type(app.authorization("private-room", "1.2"), Authorization)


async def running(app: ChannelPublisher, tokens: AsyncIterator[str]) -> None:
    """A run and its end."""
    async with app.run("room", client_id="ana", transport={"model": "m"}) as run:
        assert_type(run, Run)
        await run.write("token")
        await run.write_all(tokens)
        async for token in run.watch(tokens):
            assert_type(token, str)
        async with run.tool("search", {"q": 1}) as call:
            assert_type(call, ToolCall)
        assert_type(run.cancelled, bool)
    assert_type(run.reason, Literal["complete", "cancelled", "error", "suspended"] | None)
    assert_type(await app.cancel("room", "run"), Receipt)


async def asking(client: ChannelClient) -> None:
    """What a user says to an agent."""
    assert_type(await client.publish("room", "ai-input", {"text": "hi"}), str)
    assert_type(await client.cancel("room", own=True), str)


async def reading(app: ChannelPublisher) -> None:
    """The server's side: what is stored, and who is there."""
    assert_type(await app.message("room", "serial"), Message)
    assert_type(await app.versions("room", "serial", limit=5), Page[MessageVersion])
    page = await app.history("room", direction="oldest_first")
    assert_type(page, Page[StoredMessage])
    assert_type(page.next_cursor, str | None)
    assert_type(page.items[0].published_at_ms, int)
    async for message in app.messages("room"):
        assert_type(message, StoredMessage)
    assert_type(await app.channels("presence-", info=["user_count"]), dict[str, ChannelInfo])
    assert_type((await app.channel("room")).subscription_count, int | None)
    assert_type(await app.users("presence-lab"), list[str])


def blocking(app: BlockingChannelPublisher, tokens: Sequence[str]) -> None:
    """The same without an event loop."""
    with app:
        assert_type(app.publish("room", "said", {"text": "hi"}), Receipt)
        with app.stream("room", "answer") as answer:
            assert_type(answer, BlockingMessageStream)
            for token in tokens:
                answer.write(token)
        assert_type(app.history("room").items, list[StoredMessage])
        for message in app.messages("room"):
            assert_type(message, StoredMessage)
        assert_type(app.token("ana", {"room": ["subscribe"]}), str)
        with app.run("room", client_id="ana") as run:
            assert_type(run, BlockingRun)
            for token in run.watch(tokens):
                assert_type(token, str)
                run.write(token)
            with run.tool("search", {"q": "tide"}) as call:
                call.result = 1
        assert_type(app.user_authorization("1.2", "ana"), UserAuthorization)


async def subscribing() -> None:
    """The reader's side: messages are values, and a reset is told apart."""

    async def authorize(channel: str, socket_id: str) -> Authorization:
        return Authorization(auth=f"{channel}:{socket_id}")

    def start_over(reset: Reset) -> None:
        assert_type(reset.code, str)

    client = ChannelClient(
        "ws://127.0.0.1:8080",
        "key",
        authorize=authorize,
        append_mode="full",
        append_rollup_window=40,
    )
    async with client, client.subscribe("room", rewind=10, on_reset=start_over) as channel:
        assert_type(channel, Channel)
        assert_type(channel.messages, Sequence[Message])
        assert_type(channel.members, Mapping[str, Any])
        assert_type(channel.get("serial"), Message | None)
        async for message in channel:
            assert_type(message, Message)
            assert_type(message.serial, str)
            assert_type(message.is_complete, bool)
            assert_type(message.status, str | None)


def explained(error: PublishRefused) -> tuple[int, str]:
    """What a refusal carries."""
    return error.status, error.code
