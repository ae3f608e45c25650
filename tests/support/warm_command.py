"""`tidelog` for a shell, as a child of the forking process of `support.warm`.

A copy of this file is the program `tidelog` of a folder that a test puts first on `PATH`. It gives
its streams, its arguments and its environment to the forking process, hands on signals, and ends as
its counterpart ends; if it is killed, so is that. It imports next to nothing: that is its point.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path

HANDED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def main() -> None:
    """Run one command; never returns."""
    home = Path(__file__).parent
    plain = json.loads((home / "interpreter.json").read_text(encoding="utf-8"))
    if plain["variables"] != {n: t for n, t in os.environ.items() if n.startswith("PYTHON")}:
        # The interpreter reads them before anything else.
        os.execv(plain["python"], [plain["python"], "-m", "tidelog", *sys.argv[1:]])
    asked = {
        "arguments": ["tidelog", *sys.argv[1:]],
        "env": dict(os.environ),
        "cwd": str(Path.cwd()),
        "is_script": True,
        "is_interrupted": signal.getsignal(signal.SIGINT) != signal.SIG_IGN,
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as nursery:
        nursery.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        nursery.connect(str(home / "socket"))
        socket.send_fds(nursery, [json.dumps(asked).encode()], [0, 1, 2])
        pid = int(nursery.recv(16))

        def hand_on(number: int, _frame: object) -> None:
            os.kill(pid, number)

        for each in HANDED_ON:
            signal.signal(each, hand_on)
        code = int(nursery.recv(16))
        for each in HANDED_ON:  # its counterpart is gone
            signal.signal(each, signal.SIG_DFL)
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
