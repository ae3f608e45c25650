"""An S3 server in a process of its own, on loopback: moto, or the one that is named.

Of its own because delta-rs may keep the interpreter's lock while it waits for the server.
`TIDELOG_TEST_S3_SERVER` names the program of versitygw, which keeps objects as files.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

KEY, SECRET = "a-key", "a-secret-nobody-may-see"

_NAMES = ("AWS_", "AZURE_")
"""What the environment of whoever runs the tests says is not for them."""

_LOOK_SECONDS = 0.05


class S3Server(NamedTuple):
    """A server that runs."""

    url: str
    folder: Path | None
    """Of one that keeps a bucket as a folder; moto keeps them in memory."""

    def environment(self) -> dict[str, str]:
        """Variables by which it is found."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def bucket(self) -> str:
        """A new bucket."""
        name = f"bucket-{uuid4().hex[:12]}"
        if self.folder is None:
            self._request("PUT", f"/{name}")
        else:
            (self.folder / name).mkdir()
        return name

    def require_keys(self, *, is_required: bool) -> None:
        """Let those in who have the right key, or everybody, as far as it can be told that."""
        if self.folder is None:
            self._request("POST", "/moto-api/reset-auth", b"0" if is_required else b"inf")

    def _request(self, method: str, path: str, body: bytes | None = None) -> None:
        kind = {"content-type": "text/plain"}
        request = urllib.request.Request(f"{self.url}{path}", body, kind, method=method)
        with urllib.request.urlopen(request, timeout=60):
            return


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Start one; it ends with the block, or with this process if it is moto.

    Args:
        folder: An empty one, for what it keeps.
    """
    program = os.environ.get("TIDELOG_TEST_S3_SERVER")
    if program is None:
        with _process([sys.executable, __file__]) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            yield S3Server(process.stdout.readline().strip(), None)
            process.stdin.close()
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        host, port = free.getsockname()
    keys = ["--access", KEY, "--secret", SECRET]
    with _process([program, *keys, "--port", f"{host}:{port}", "posix", str(folder)]) as process:
        try:
            while not _is_open(host, port):
                assert process.poll() is None, "it has ended"
                time.sleep(_LOOK_SECONDS)
            yield S3Server(f"http://{host}:{port}", folder)
        finally:
            process.terminate()


def _process(command: list[str]) -> "subprocess.Popen[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_NAMES)}
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if command[0] == sys.executable else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=clean,
        text=True,
    )


def _is_open(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def main() -> None:
    """Say where moto is, and serve until nobody has the other end of standard input."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    print(f"http://{host}:{port}", flush=True)  # noqa: T201 - what the test reads
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
