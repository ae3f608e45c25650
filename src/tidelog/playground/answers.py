"""A stand-in for a language model: it answers whatever it is asked, word by word, until stopped."""

import asyncio
import logging
from collections.abc import AsyncIterator

from tidelog.base.errors import TidelogError
from tidelog.channels.settings import App

WORD_SECONDS = 0.06
"""Pause before a word: as fast as a model writes, and slow enough to press a button."""

MAX_ANSWERS = 8
"""Answers under way at once; more are refused."""

_ANSWER = (
    "You asked: {question} I am no model, only a few lines of Python that write one word after the "
    "other into a message of this channel. Each word is on the disk before you see it. Press stop, "
    "reload the page, cut the connection of one pane, or open this page in a second browser: "
    "everybody sees the same text, no word is missing and none is there twice. Put the client of "
    "your own model where these words come from, and keep the rest."
)

_log = logging.getLogger(__name__)


async def words_of(question: str) -> AsyncIterator[str]:
    """What a model would yield."""
    for word in _ANSWER.format(question=question).split(" "):
        await asyncio.sleep(WORD_SECONDS)
        yield word + " "


class Answers:
    """The answers under way."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_full(self) -> bool:
        """Whether no more can be begun."""
        return len(self._tasks) >= MAX_ANSWERS

    def begin(self, url: str, channel: str, question: str, client_id: str) -> None:
        """Write an answer into a channel of the server at `url`, as anybody's backend would."""
        task = asyncio.create_task(self._answer(url, channel, question, client_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, url: str, channel: str, question: str, client_id: str) -> None:
        # Imported when somebody asks: a server that nobody asks starts without it.
        from tidelog.client import ChannelPublisher, RunCancelled

        app = self._app
        try:
            async with (
                ChannelPublisher(url, app.id, app.key, app.secret) as publisher,
                publisher.run(channel, client_id=client_id) as run,
            ):
                async for word in words_of(question):
                    await run.write(word)
        except RunCancelled:
            pass  # its message says so
        except TidelogError as error:
            _log.warning("the playground's answer ended early: %s", error)
