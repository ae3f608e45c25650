"""Changes for somebody else's server: in order, each once, through failures and kills."""

import hashlib
import hmac
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.pipeline.pipeline_process import END_SECONDS
from support.pipeline.table_rows import table_rows
from support.pipeline.typed_command import NO_JVM, Command, refused
from tidelog.base.faultpoint import VARIABLE, FaultPoint
from tidelog.pipeline import deliver as module
from tidelog.pipeline.deliver import DeliveryFailed, DeliveryReset, Progress, Receiver, deliver
from tidelog.pipeline.lake.errors import LakeError
from tidelog.pipeline.lake.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "a secret of the receiver"
CHANGES = 25


class Taking:
    """A receiver that keeps the position with what it applied, and fails as it is told to."""

    def __init__(self) -> None:
        self.applied: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.troubles: list[int | None] = []
        """What happens to the next posts: a status, or None for no answer to one that was taken."""
        taking = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                trouble = taking.troubles.pop(0) if taking.troubles else 200
                if trouble in (None, 200):
                    taking.take(body, dict(self.headers))
                if trouble is None:
                    self.connection.close()
                    return
                self.send_response(trouble)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name
                del format, args

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/changes"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, body: bytes, headers: dict[str, str]) -> None:
        """Check who sent it, and apply what was not applied before."""
        signed = headers["X-Tidelog-Timestamp"].encode() + b"." + body
        made = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
        assert headers["X-Tidelog-Signature-2"] == f"sha256={made}"
        batch = json.loads(body)
        self.keys.append(headers["Idempotency-Key"])
        position = self.applied[-1]["committed_id"] if self.applied else 0
        assert batch["after"] <= position, "nothing is left out"
        assert [c["committed_id"] for c in batch["changes"]] == list(
            range(batch["after"] + 1, batch["through"] + 1)
        )
        self.applied += [c for c in batch["changes"] if c["committed_id"] > position]

    @property
    def positions(self) -> list[int]:
        """What was applied."""
        return [change["committed_id"] for change in self.applied]

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def taking() -> Iterator[Taking]:
    """A receiver."""
    receiver = Taking()
    yield receiver
    receiver.close()


def row(at: int, text: str = "tide") -> dict[str, Any]:
    """A row of `changes`."""
    return {
        "committed_id": at,
        "surface": "channels",
        "stream": "channels/app/room",
        "kind": "message.create",
        "entity": f"m{at}",
        "change": f'{{"data":"{text}","big":12345678901234567890}}',
        "content": b"\x00\xff" if at == 1 else None,
        "digest": f"{at}-{text}",
    }


@pytest.fixture
def lake(spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A lake with some changes, of which a batch takes ten."""
    monkeypatch.setattr(module, "BATCH_CHANGES", 10)
    lake = Lake(tmp_path / "lake")
    rows = [row(at) for at in range(1, CHANGES + 1)]
    lake.append("changes", table_rows(spark, "changes", *rows).coalesce(1), CHANGES)
    return lake


def test_every_change_is_applied_once_and_in_order(
    spark: "SparkSession", lake: Lake, taking: Taking
) -> None:
    """A refusal and a lost answer are tried again, under the same key; later ones follow."""
    taking.troubles = [503, None, 200, None]
    pauses: list[float] = []
    receiver = Receiver.at(taking.url, SECRET)
    done = deliver(lake, receiver, pause=pauses.append)
    assert (done.through, done.changes, done.batches) == (CHANGES, CHANGES, 3)
    assert taking.positions == list(range(1, CHANGES + 1))
    assert taking.keys == [":1-10", ":1-10", ":11-20", ":11-20", ":21-25"]
    assert pauses == [1.0, 2.0, 1.0]
    first = taking.applied[0]
    assert first["change"] == {"data": "tide", "big": 12345678901234567890}
    assert first["content"] == "AP8="
    assert deliver(lake, receiver).batches == 0
    lake.append("changes", table_rows(spark, "changes", row(26)), 26)
    assert deliver(lake, receiver).through == 26
    assert taking.positions == list(range(1, 27))


def test_a_batch_has_a_size(lake: Lake, taking: Taking, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in bytes; a change that is larger goes alone."""
    monkeypatch.setattr(module, "BATCH_BYTES", 100)
    assert deliver(lake, Receiver.at(taking.url, SECRET)).through == CHANGES
    assert taking.keys[:3] == [":1-2", ":3-4", ":5-6"]
    monkeypatch.setattr(module, "BATCH_BYTES", 1)
    deliver(lake, Receiver.at(taking.url, SECRET, "other"), restart_at=23)
    assert taking.keys[-2:] == [":24-24", ":25-25"]


def test_a_receiver_that_fails_is_given_up_and_taken_up(lake: Lake, taking: Taking) -> None:
    """What it took is noted, also when the next attempt is another process's."""
    taking.troubles = [200, 500, 500, 500]
    receiver = Receiver.at(taking.url, SECRET)
    with pytest.raises(DeliveryFailed, match=r"did not take changes 11 to 20: it returned 500.*3"):
        deliver(lake, receiver, attempts=3, pause=lambda _seconds: None)
    assert deliver(lake, receiver).batches == 2
    assert taking.positions == list(range(1, CHANGES + 1))
    taking.troubles = [410]
    with pytest.raises(DeliveryFailed, match="wants no more"):
        deliver(lake, Receiver.at(taking.url, SECRET, "other"))


KILLED = f"""
import tidelog.pipeline.deliver as module
module.BATCH_CHANGES = 10
{NO_JVM}
"""


def test_a_kill_between_a_post_and_its_note_repeats_the_batch(lake: Lake, taking: Taking) -> None:
    """`kill -9` of the real command: the same batch comes again, under the same key."""
    environment = {**os.environ, "TIDELOG_PIPELINE_DELIVER_SECRET": SECRET}
    command = [sys.executable, "-c", KILLED, "deliver", "--to", taking.url, "--json"]
    command += ["--lake", str(lake.root)]

    def ended(fault: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env={**environment, VARIABLE: fault},
            capture_output=True,
            text=True,
            timeout=END_SECONDS,
            check=False,
        )

    killed = ended(f"{FaultPoint.CHANGES_POSTED}=kill@2")
    assert killed.returncode == -9, killed.stderr
    done = ended("")
    assert done.returncode == 0, done.stderr
    assert taking.keys == [":1-10", ":11-20", ":11-20", ":21-25"]
    assert taking.positions == list(range(1, CHANGES + 1))
    assert json.loads(done.stdout) == {"through": CHANGES, "changes": 15, "batches": 2}


def test_a_log_that_was_rolled_back_is_not_continued(
    spark: "SparkSession", lake: Lake, taking: Taking
) -> None:
    """The receiver has what the log lost: it is told, and goes on where both agree."""
    receiver = Receiver.at(taking.url, SECRET)
    deliver(lake, receiver)
    rows = [row(at) for at in range(1, 21)] + [row(at, "ebb") for at in range(21, 31)]
    lake.overwrite("changes", table_rows(spark, "changes", *rows), 30)
    with pytest.raises(DeliveryReset, match=r"--restart-at POSITION"):
        deliver(lake, receiver)
    del taking.applied[20:]
    assert deliver(lake, receiver, restart_at=20).through == 30
    assert [change["digest"] for change in taking.applied[18:22]] == [
        "19-tide",
        "20-tide",
        "21-ebb",
        "22-ebb",
    ]


def test_what_was_forgotten_is_not_sent(spark: "SparkSession", lake: Lake, taking: Taking) -> None:
    """Its place is, so that positions stay gapless; a hole in the table is an error."""
    gone = [row(at) | ({"change": None, "content": None} if at == 1 else {}) for at in range(1, 4)]
    lake.overwrite("changes", table_rows(spark, "changes", *gone), 3)
    deliver(lake, Receiver.at(taking.url, SECRET))
    assert (taking.applied[0]["change"], taking.applied[0]["content"]) == (None, None)
    lake.overwrite("changes", table_rows(spark, "changes", row(1), row(3)), 3)
    with pytest.raises(DeliveryFailed, match=r"has 2 of the changes from 1 to 3"):
        deliver(lake, Receiver.at(taking.url, SECRET, "other"))


def test_what_cannot_be_delivered_is_explained(
    lake: Lake, taking: Taking, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No secret, no table, a name that is none, and a second process."""
    to, own = ("deliver", "--to", taking.url), ("--lake", str(lake.root))
    refused(command(*to, *own), 2, "deliver_secret")
    refused(command("deliver", "--to", "ftp://x", *own), 2, "http://")
    refused(command(*to, "--name", "../x", *own), 2, "letters")
    monkeypatch.setenv("TIDELOG_PIPELINE_DELIVER_SECRET", SECRET)
    refused(command(*to, "--lake", str(tmp_path / "none")), 1, "tidelog pipeline run")
    with (
        module._notes(lake, "mine"),
        pytest.raises(DeliveryFailed, match="another process delivers"),
    ):
        deliver(lake, Receiver.at(taking.url, SECRET, "mine"))
    with pytest.raises(LakeError):
        deliver(Lake(tmp_path / "none"), Receiver.at(taking.url, SECRET))
    (lake.root / "_deliveries" / "mine.json").write_text("{")
    with pytest.raises(DeliveryFailed, match="damaged"):
        deliver(lake, Receiver.at(taking.url, SECRET, "mine"))
    told = command(*to, *own, "--json")
    assert told.json()["through"] == CHANGES
    assert Progress(CHANGES).pending == 0
