"""The sync client as a process for the conformance fixtures: JSON lines in, JSON lines out.

It reads one operation per line and answers each with one line; README.md lists them. The transport
is the fixture itself: what the client would send is given out by `outbox`, what a server would say
comes in by `deliver`.
"""

import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson

from tidelog.base.clock import SystemClock
from tidelog.client.sync.actions import Send
from tidelog.client.sync.core import SyncCore
from tidelog.client.sync.rows import StoredEvent
from tidelog.client.sync.store import SyncStore
from tidelog.sync.protocol.profiles import Model

Json = dict[str, Any]

_ROW_FIELDS = (
    *("id", "committed_id", "status", "partitions", "client_id", "draft_clock"),
    "reject_reason",
)


class Driver:
    """One client and its store file, driven step by step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = itertools.count(1)
        self._path = folder
        self._opened: Json = {}
        self._store: SyncStore | None = None
        self._core: SyncCore | None = None
        self._messages: list[Json] = []
        self._operations = {
            "open": self._open,
            "draft": self._draft,
            "deliver": self._deliver,
            "sync": self._sync,
            "outbox": self._outbox,
            "flush": self._flush,
            "rows": self._rows,
            "view": self._view,
            "cursor": self._cursor,
            "snapshot": self._snapshot,
            "snapshots": self._snapshots,
            "prune": self._prune,
            "reopen": self._reopen,
            "disconnect": self._disconnect,
            "reconnect": self._reconnect,
        }

    def answer(self, operation: Json) -> Json:
        """Do one operation; the reply always has `ok`."""
        work = self._operations.get(operation.get("op", ""))
        if work is None:
            return {"ok": False, "error": f"unknown op {operation.get('op')!r}"}
        if self._core is not None:
            self._core.tick()
        reply = {"ok": True} | work(operation)
        self._collect(self.core)
        return reply

    def close(self) -> None:
        """Give the store file back."""
        if self._store is not None:
            self._store.close()

    @property
    def core(self) -> SyncCore:
        """The client; only after `open`."""
        assert self._core is not None, "open comes first"
        return self._core

    def _open(self, operation: Json) -> Json:
        self._path = self._folder / f"{next(self._files)}.db"
        self._opened = operation
        return self._start()

    def _start(self) -> Json:
        self.close()
        opened = self._opened
        now = SystemClock().now_ms
        version = opened["model_version"]
        model = Model.parse(opened["tree_targets"], opened["schemas"], version)
        self._store = SyncStore(
            self._path, client_id=opened["client_id"], model_version=version, now=now
        )
        self._core = SyncCore(
            self._store,
            model,
            now=now,
            uuid=lambda: str(uuid4()),
            profile=opened.get("profile", "compatibility"),
            partitions=opened.get("partitions", ()),
            submits_itself=False,
        )
        self._core.assume_connected()
        self._messages.clear()
        return {}

    def _collect(self, core: SyncCore) -> None:
        for action in core.actions():
            if isinstance(action, Send):
                message = action.message
                self._messages.append({"type": message["type"], "payload": message["payload"]})
            else:
                core.disconnected()

    def _draft(self, operation: Json) -> Json:
        item = operation["item"]
        stored = self.core.submit(item["partitions"], item["event"], item.get("id"))
        if isinstance(stored, StoredEvent):
            return {"row": _row(stored)}
        return {"ok": False, "errors": [fault._asdict() for fault in stored]}

    def _deliver(self, operation: Json) -> Json:
        self.core.receive(operation["message"])
        return {}

    def _sync(self, operation: Json) -> Json:
        self.core.sync(
            operation["partitions"],
            operation.get("subscription_partitions"),
            limit=operation.get("limit"),
        )
        return {}

    def _outbox(self, _operation: Json) -> Json:
        messages, self._messages = self._messages, []
        return {"messages": messages}

    def _flush(self, _operation: Json) -> Json:
        self.core.flush()
        return {}

    def _rows(self, _operation: Json) -> Json:
        return {"rows": [_row(row) for row in self.core.store.rows()]}

    def _view(self, operation: Json) -> Json:
        return {"state": self.core.view(operation["partition"])}

    def _cursor(self, operation: Json) -> Json:
        return {"committed_id": self.core.last_committed_id(operation["partition"])}

    def _snapshot(self, operation: Json) -> Json:
        committed_id = self.core.save_snapshot(operation["partition"])
        if committed_id is None:
            return {"ok": False, "error": "a sync cycle over the partition is under way"}
        return {"committed_id": committed_id}

    def _snapshots(self, _operation: Json) -> Json:
        return {"snapshots": [info._asdict() for info in self.core.store.snapshots()]}

    def _prune(self, _operation: Json) -> Json:
        return {"pruned": self.core.store.prune()}

    def _reopen(self, _operation: Json) -> Json:
        return self._start()

    def _disconnect(self, _operation: Json) -> Json:
        self.core.disconnected()
        return {}

    def _reconnect(self, _operation: Json) -> Json:
        self.core.disconnected()
        self.core.connect("token")
        return {}


def _row(row: StoredEvent) -> Json:
    return {field: getattr(row, field) for field in _ROW_FIELDS}


def main() -> None:
    """Answer operations until standard input ends."""
    with tempfile.TemporaryDirectory(prefix="tidelog-sync-driver") as folder:
        driver = Driver(Path(folder))
        for line in sys.stdin.buffer:
            reply = driver.answer(orjson.loads(line))
            sys.stdout.buffer.write(orjson.dumps(reply) + b"\n")
            sys.stdout.buffer.flush()
        driver.close()


if __name__ == "__main__":
    main()
