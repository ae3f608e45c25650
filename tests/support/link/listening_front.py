"""A front that only listens, for tests of an owner's half."""

import asyncio
from typing import Any

from tidelog.link.encoded import connect_apart
from tidelog.link.ends import AtOwner, FrontEnd, OwnerHalf, Send
from tidelog.link.message import Message, Vocabulary

WAIT_SECONDS = 20.0


class ListeningFront:
    """Everything that it hears, in order."""

    def __init__(self, owner: OwnerHalf, vocabulary: Vocabulary) -> None:
        self._owner = owner
        self.at_owner: AtOwner
        self.end: FrontEnd = connect_apart(self, vocabulary)
        self.end.hear = self.hear
        self.heard: list[Any] = []
        self._came = asyncio.Event()

    def accept(self, send: Send) -> AtOwner:
        """In the owner's place, to know what it has for this front."""
        self.at_owner = self._owner.accept(send)
        return self.at_owner

    def hear(self, message: Message) -> None:
        """Something came."""
        self.heard.append(message)
        self._came.set()

    async def one(self) -> Any:
        """The next message."""
        [message] = await self.next(1)
        return message

    async def next(self, count: int) -> list[Any]:
        """The next so many messages."""
        async with asyncio.timeout(WAIT_SECONDS):
            while len(self.heard) < count:
                self._came.clear()
                await self._came.wait()
        taken, self.heard = self.heard[:count], self.heard[count:]
        return taken
