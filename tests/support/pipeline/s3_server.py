"""An S3 server in a process of its own: moto, on loopback.

Of its own because delta-rs may keep the interpreter's lock while it waits for the server.
"""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from uuid import uuid4

_NAMES = ("AWS_", "AZURE_")
"""What the environment of whoever runs the tests says is not for them."""


class S3Server(NamedTuple):
    """A server that runs."""

    url: str

    def environment(self) -> dict[str, str]:
        """Variables by which it is found."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "a-secret-nobody-may-see",
            "AWS_REGION": "us-east-1",
        }

    def bucket(self) -> str:
        """A new bucket."""
        name = f"bucket-{uuid4().hex[:12]}"
        self._request("PUT", f"/{name}")
        return name

    def require_keys(self, *, is_required: bool) -> None:
        """Let nobody in, or everybody."""
        self._request("POST", "/moto-api/reset-auth", b"0" if is_required else b"inf")

    def _request(self, method: str, path: str, body: bytes | None = None) -> None:
        kind = {"content-type": "text/plain"}
        request = urllib.request.Request(f"{self.url}{path}", body, kind, method=method)
        with urllib.request.urlopen(request, timeout=60):
            return


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Start one; it ends with the block, or with this process."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_NAMES)}
    with subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=clean,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield S3Server(process.stdout.readline().strip())
        process.stdin.close()


def main() -> None:
    """Say where it is, and serve until nobody has the other end of standard input."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    print(f"http://{host}:{port}", flush=True)  # noqa: T201 - what the test reads
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
