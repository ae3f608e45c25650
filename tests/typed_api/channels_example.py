"""What a type checker knows of the channel clients; checked, never run."""

from collections.abc import Mapping, Sequence
from typing import Any, assert_type

from tidelog.client import (
    Authorization,
    Channel,
    ChannelClient,
    ChannelPublisher,
    Message,
    MessageStream,
    PublishRefused,
    Receipt,
    Reset,
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


async def subscribing() -> None:
    """The reader's side: messages are values, and a reset is told apart."""

    async def authorize(channel: str, socket_id: str) -> Authorization:
        return Authorization(auth=f"{channel}:{socket_id}")

    def start_over(reset: Reset) -> None:
        assert_type(reset.code, str)

    client = ChannelClient("ws://127.0.0.1:8080", "key", authorize=authorize, append_mode="full")
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
