"""A server of several processes: what its supervisor runs, from start to orderly end."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Literal

from tidelog.base.own_program import own_program
from tidelog.base.supervisor import Program, Supervisor
from tidelog.config.settings import Settings
from tidelog.serve import handed_settings
from tidelog.serve.private_directory import private_directory
from tidelog.serve.program import Arguments

SUPERVISOR, OWNER = "supervisor", "owner"
"""What log lines call these processes; the others are `front 1` and so on."""

END_SECONDS = 5.0
"""Beyond `shutdown_grace_ms`: what a program has for its end after it has waited for its peers."""


def counted(workers: int | Literal["auto"]) -> int:
    """How many processes have connections; 1 is one process with everything."""
    if workers != "auto":
        return workers
    ours = getattr(os, "sched_getaffinity", None)  # of Linux: a container may have fewer
    processors = len(ours(0)) if ours else os.cpu_count() or 1
    return max(1, processors - 1)  # one is the owner's


async def supervise(
    settings: Settings, listener: socket.socket, ready: Callable[[str], None]
) -> None:
    """Run a server until SIGTERM or SIGINT; the second makes it hurry.

    `workers` of the settings is a number. `ready` is called once, with what the owner said, when
    all processes serve.

    Raises:
        CouldNotStart: one of them has said why.
        ConfigError: there is no place for their socket.
    """
    with ExitStack() as kept:
        directory = kept.enter_context(private_directory())
        number = handed_settings.hand_on(settings)
        kept.callback(os.close, number)
        supervisor = Supervisor(
            _ranks(counted(settings.workers), str(directory / "owner.sock"), number),
            listener,
            grace_seconds=settings.limits.shutdown_grace_ms / 1000 + END_SECONDS,
        )
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, supervisor.stop)
        running = asyncio.ensure_future(supervisor.run())
        waiting = asyncio.ensure_future(supervisor.ready.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if supervisor.ready.is_set():
            ready(supervisor.said[OWNER])
        await running


def _ranks(fronts: int, path: str, settings: int) -> Sequence[Sequence[Program]]:
    """Fronts begin when the owner is ready, and have ended before it ends."""

    def program(name: str, module: str, *, is_given_port: bool) -> Program:
        arguments = Arguments(name, path, str(settings))
        command = own_program(f"tidelog.serve.{module}", *arguments)
        return Program(name, command, is_given_port, (settings,))

    names = [f"front {number}" for number in range(1, fronts + 1)]
    return (
        [program(OWNER, "owner", is_given_port=False)],
        [program(name, "front", is_given_port=True) for name in names],
    )
