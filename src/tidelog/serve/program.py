"""What the owner's and the front's program have in common: arguments, settings, log, failures."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

import uvloop

from tidelog.base.errors import TidelogError
from tidelog.base.last_words import last_words
from tidelog.config.credentials import secrets_of
from tidelog.config.settings import Settings
from tidelog.serve import handed_settings
from tidelog.web import logs

T = TypeVar("T")


class Arguments(NamedTuple):
    """Of both programs; no secret is among them, because everybody may read a command line."""

    name: str
    """Of this process, for the log."""
    socket: str
    """Path of the link's."""
    settings: str
    """Number of the file that has them; see `handed_settings`."""


def run(program: Callable[[Settings, Arguments], Awaitable[T]]) -> T:
    """Run a program with the settings and the arguments that it was given.

    A failure that we understand ends it with one line on standard error, as with the command.
    """
    given = Arguments(*sys.argv[1:])
    settings = handed_settings.taken(int(given.settings))
    logs.configure(settings.log_level, settings.log_format, secrets_of(settings), given.name)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_awaited(program(settings, given)))
    except (TidelogError, OSError) as error:
        sys.exit(last_words(error))


async def _awaited(program: Awaitable[T]) -> T:
    return await program
