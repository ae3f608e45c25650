"""A supervisor as a program: an owner and fronts on a free port, until SIGTERM.

Prints the port when all are ready. Arguments: how many fronts, then those of the programs.
"""

import asyncio
import signal
import socket
import sys

from tidelog.base.supervisor import Supervisor
from tidelog.serve.program import Arguments
from tidelog.serve.workers import ranks


async def supervise(fronts: int, arguments: Arguments) -> None:
    """Run them."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        listener.setblocking(False)
        supervisor = Supervisor(ranks(fronts, arguments), listener, grace_seconds=30)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, supervisor.stop)
        running = asyncio.create_task(supervisor.run())
        ready = asyncio.create_task(supervisor.ready.wait())
        await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            sys.stdout.write(f"{listener.getsockname()[1]}\n")
            sys.stdout.flush()
        await running


if __name__ == "__main__":
    asyncio.run(supervise(int(sys.argv[1]), Arguments(*sys.argv[2:])))
