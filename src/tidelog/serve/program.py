"""What the owner's and the front's program have in common: arguments, settings, log, failures."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import uvloop

from tidelog.base.errors import ConfigError, TidelogError
from tidelog.base.supervisor import LISTENER_VARIABLE, READY_VARIABLE
from tidelog.base.terminal import printable_lines
from tidelog.config.credentials import require_credentials, secrets_of
from tidelog.config.settings import Settings, load
from tidelog.web import logs

T = TypeVar("T")

_OURS = (LISTENER_VARIABLE, READY_VARIABLE)


class Arguments(NamedTuple):
    """Of both programs: the path of the link's socket and, if there is one, a configuration file.

    Every other setting is in the environment, which they have from whoever starts them.
    """

    socket: str
    config: str = ""


def run(program: Callable[[Settings, str], Awaitable[T]]) -> T:
    """Run a program with the settings and the socket that it was given.

    A failure that we understand ends it with one line on standard error, as with the command.
    """
    given = Arguments(*sys.argv[1:])
    environment = {name: value for name, value in os.environ.items() if name not in _OURS}
    try:
        settings = load({}, environment, Path(given.config) if given.config else None).settings
        require_credentials(settings)
        logs.configure(settings.log_level, settings.log_format, secrets_of(settings))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_awaited(program(settings, given.socket)))
    except TidelogError as error:
        sys.stderr.write(f"tidelog: {printable_lines(str(error))}\n")
        sys.exit(2 if isinstance(error, ConfigError) else 1)


async def _awaited(program: Awaitable[T]) -> T:
    return await program
