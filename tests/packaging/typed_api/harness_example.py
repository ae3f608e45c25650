"""What a type checker knows of `tidelog.testing`, for tests of applications; checked, never run."""

from pathlib import Path
from typing import assert_type

from tidelog.serve.server import Server
from tidelog.testing.clock import FakeClock
from tidelog.testing.postgresql import create_database, throwaway_postgresql
from tidelog.testing.process import ServerProcess
from tidelog.testing.server import running_server


async def servers(folder: Path) -> None:
    """A server in this process, one as a process, a database and a clock."""
    async with running_server(folder, mounts=(), extensions=()) as server:
        assert_type(server, Server)
        assert_type(server.url, str)
    with ServerProcess(data_dir=folder, arguments=("--dev",)) as process:
        assert_type(process, ServerProcess)
        process.start()
        assert_type(process.terminate(), int)
    with throwaway_postgresql() as url:
        assert_type(await create_database(url), str)
    assert_type(FakeClock().now_ms(), int)
