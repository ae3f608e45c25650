"""A server that takes its own place: it has the port, and waits for its store."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx

from support.web.balancer import Balancer
from tidelog.base.supervisor import LISTENER_VARIABLE
from tidelog.testing.process import CREDENTIALS

SECONDS = 60.0


async def test_a_server_that_begins_again_keeps_its_port_and_waits_for_its_store(
    postgresql_url: str, tmp_path: Path, free_port: int
) -> None:
    """Who connects meanwhile waits too, and is answered; the variable is no setting of anybody."""
    server, name = postgresql_url.rsplit("/", 1)
    upstream = int(server.rsplit(":", 1)[1])
    log = tmp_path / "server.log"
    with socket.socket() as listener, log.open("wb") as errors:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        async with (
            Balancer(free_port) as balancer,
            httpx.AsyncClient(trust_env=False, verify=False) as client,
        ):
            store = f"{server.rsplit(':', 1)[0]}:{balancer.port}/{name}"
            command = [sys.executable, "-m", "tidelog", "serve", "--json", "--port", str(port)]
            command += ["--data-dir", str(tmp_path / "data"), "--store", store]
            process = subprocess.Popen(  # noqa: ASYNC220 - returns at once
                command,
                env={
                    **os.environ,
                    **CREDENTIALS,
                    LISTENER_VARIABLE: str(listener.fileno()),
                    "TIDELOG_POSTGRESQL_CONNECT_TIMEOUT_MS": "300",
                },
                pass_fds=[listener.fileno()],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            try:
                asking = asyncio.create_task(
                    client.get(f"http://127.0.0.1:{port}/healthz", timeout=SECONDS)
                )
                async with asyncio.timeout(SECONDS):
                    while b"waiting for the store" not in log.read_bytes():
                        assert process.poll() is None, log.read_text()
                        await asyncio.sleep(0.02)
                    assert not asking.done()
                    balancer.upstream = upstream
                    assert (await asking).json()["ready"] is True
                assert process.stdout is not None
                ready = json.loads(await asyncio.to_thread(process.stdout.readline))
                assert ready["url"] == f"http://127.0.0.1:{port}"
                assert LISTENER_VARIABLE not in log.read_text()
                process.terminate()
                assert await asyncio.to_thread(process.wait, SECONDS) == 0
            finally:
                process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()
