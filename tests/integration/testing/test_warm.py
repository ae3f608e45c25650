"""Warm processes are waited for by several threads, as those of `subprocess` are."""

import os
import signal
import sys
import threading
from pathlib import Path

from support.warm import NURSERY
from tidelog.testing.process import Process

ROUNDS = 10
LOOKERS = 2


def _look(process: Process, codes: list[int]) -> None:
    while (code := process.poll()) is None:
        pass
    codes.append(code)


def test_threads_that_look_leave_the_exit_code_to_whoever_waits(tmp_path: Path) -> None:
    """Its pipe is read once; a second reader saw a closed file, and a killer died of that."""
    for _ in range(ROUNDS):
        with (tmp_path / "errors").open("ab") as errors:
            process = NURSERY.start(
                [sys.executable, "-m", "tidelog", "--help"],
                env=dict(os.environ),
                stderr=errors,
                cwd=str(tmp_path),
            )
        codes: list[int] = []
        lookers = [threading.Thread(target=_look, args=(process, codes)) for _ in range(LOOKERS)]
        for looker in lookers:
            looker.start()
        process.send_signal(signal.SIGKILL)
        codes.append(process.wait(60))
        for looker in lookers:
            looker.join(60)
        assert process.stdout is not None
        process.stdout.close()
        assert codes == [codes[0]] * (LOOKERS + 1)
