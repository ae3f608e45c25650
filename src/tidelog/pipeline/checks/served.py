"""What a running server returns through its public HTTP routes, page by page, for Spark.

Requests are signed here a second time, from the contract: this is the outside view. Answers and
what Spark folded are brought to the same text (`shown`), so that equal states are equal texts.
"""

import hashlib
import hmac
import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

from tidelog.base.errors import TidelogError

TIMEOUT_SECONDS = 30.0
PAGE = 1000
"""Messages asked for at once; the server lowers it to the largest it gives."""

_RUNTIME_PREFIX = "sockudo_"

MESSAGE_DDL = (
    "app_id string, channel string, history_serial bigint, version_id bigint, shown string"
)
"""A message as a server shows it; `version_id` is the position of its newest version, null for an
event that cannot change."""

STATE_DDL = "partition string, position bigint, shown string"
"""The state of a partition; `position` is the last event in it. `shown` is null if the server
cannot tell it."""

MESSAGE_SCHEMA = pa.schema(
    [
        ("app_id", pa.string()),
        ("channel", pa.string()),
        ("history_serial", pa.int64()),
        ("version_id", pa.int64()),
        ("shown", pa.string()),
    ]
)
STATE_SCHEMA = pa.schema(
    [("partition", pa.string()), ("position", pa.int64()), ("shown", pa.string())]
)


class ServerUnreachable(TidelogError):  # noqa: N818 - the failure is the noun
    """The server to compare with does not answer as it should."""


class AppKey(NamedTuple):
    """What requests of an app are signed with."""

    id: str
    key: str
    secret: str


class Server(NamedTuple):
    """A running server and what opens it."""

    url: str
    apps: tuple[AppKey, ...] = ()
    admin_token: str = ""
    """For the states of sync; without it they are not compared."""

    def app(self, app_id: str) -> AppKey | None:
        """The key of an app, if it is known."""
        return next((app for app in self.apps if app.id == app_id), None)


class Asking:
    """One connection to a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        parts = urlsplit(server.url)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._connection = kind(parts.netloc, timeout=TIMEOUT_SECONDS)

    def signed(self, app: AppKey, path: str, **query: Any) -> tuple[int, Any]:
        """Status and JSON of a GET below an app; the path is percent-encoded already."""
        path = f"/apps/{quote(app.id, safe='')}{path}"
        given = {name: str(value) for name, value in query.items()} | {
            "auth_key": app.key,
            "auth_timestamp": str(int(time.time())),
            "auth_version": "1.0",
        }
        listed = "&".join(f"{name.lower()}={given[name]}" for name in sorted(given))
        text = f"GET\n{path}\n{listed}".encode()
        given["auth_signature"] = hmac.digest(app.secret.encode(), text, hashlib.sha256).hex()
        return self._get(f"{path}?{urlencode(given)}", {})

    def state(self, partition: str) -> tuple[int, Any]:
        """Status and JSON of the state of a partition."""
        path = f"/sync/admin/snapshot?{urlencode({'partition': partition})}"
        return self._get(path, {"authorization": f"Bearer {self._server.admin_token}"})

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _get(self, target: str, headers: Mapping[str, str]) -> tuple[int, Any]:
        for attempt in range(2):  # the server may have closed an idle connection
            try:
                self._connection.request("GET", target, headers=dict(headers))
                answer = self._connection.getresponse()
                return answer.status, json.loads(answer.read(), parse_float=_kept_float)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._connection.close()
                if attempt:
                    raise ServerUnreachable(
                        f"the server at {self._server.url} does not answer: {error!r}. "
                        "Start it, or name another one with --against."
                    ) from error
        raise AssertionError("unreachable")


def _kept_float(text: str) -> list[str]:
    """A number with a fraction as it is written: a double would make different ones equal."""
    return ["number", text]


def json_value(text: str | None) -> Any:
    """The value of a JSON text of ours, read as responses are."""
    return None if text is None else json.loads(text, parse_float=_kept_float)


def canonical(value: Any) -> str:
    """One text for equal values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def shown(
    *, history_serial: int, published_at_ms: int, action: str, delivery_serial: int, **fields: Any
) -> str:
    """A message as text. `fields` that are None or empty extras count as absent."""
    extras = own_extras(fields.pop("extras", None))
    whole: dict[str, Any] = {"history_serial": history_serial, "published_at_ms": published_at_ms}
    whole |= {"action": action, "delivery_serial": delivery_serial, "extras": extras or None}
    whole |= fields
    return canonical({name: value for name, value in whole.items() if value is not None})


def own_extras(extras: Any) -> Any:
    """The publisher's extras without the headers that the server adds to every projection."""
    if not isinstance(extras, dict):
        return extras
    headers = extras.get("headers") or {}
    own = {name: value for name, value in headers.items() if not name.startswith(_RUNTIME_PREFIX)}
    rest = {name: value for name, value in extras.items() if name != "headers"}
    return {**rest, "headers": own} if own else rest


def _channel_path(channel: str) -> str:
    return f"/channels/{quote(channel, safe='')}"


def _message(app_id: str, channel: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of history: its place and the message there as it is now."""
    item = row["message"]
    place = {"app_id": app_id, "channel": channel, "history_serial": row["serial"]}
    if "action" in item:
        return {**place, **_versioned(item, row["published_at_ms"])}
    text = shown(
        history_serial=row["serial"],
        published_at_ms=row["published_at_ms"],
        action="event",
        delivery_serial=item["serial"],
        name=item["event"],
        data=item.get("data"),
        extras=item.get("extras"),
        tags=item.get("tags"),
        client_id=item.get("user_id"),
    )
    return {**place, "version_id": None, "shown": text}


def _versioned(item: Mapping[str, Any], published_at_ms: int) -> dict[str, Any]:
    version = item["version"]
    text = shown(
        history_serial=item["history_serial"],
        published_at_ms=published_at_ms,
        action=item["action"],
        delivery_serial=item["delivery_serial"],
        message_serial=item["message_serial"],
        name=item.get("name"),
        data=item.get("data"),
        extras=item.get("extras"),
        client_id=version.get("client_id"),
        description=version.get("description"),
        metadata=version.get("metadata"),
        at_ms=version["timestamp_ms"],
    )
    return {"version_id": int(version["serial"][-20:]), "shown": text}


def histories(server: Server) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow` over `app_id, channel`: all messages in their histories."""

    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        asking = Asking(server)
        for batch in batches:
            for row in batch.to_pylist():
                app, channel = server.app(row["app_id"]), row["channel"]
                if app is None:
                    continue
                cursor: dict[str, str] = {}
                while True:
                    status, page = asking.signed(
                        app,
                        f"{_channel_path(channel)}/history",
                        limit=PAGE,
                        direction="oldest_first",
                        **cursor,
                    )
                    if status != 200:
                        raise ServerUnreachable(f"the history of {channel}: {status} {page}")
                    items = [_message(app.id, channel, item) for item in page["items"]]
                    yield pa.RecordBatch.from_pylist(items, schema=MESSAGE_SCHEMA)
                    if not page["has_more"]:
                        break
                    cursor = {"cursor": page["next_cursor"]}
        asking.close()

    return ask


def messages(server: Server) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow` over messages by their serials: each as the server shows it.

    Columns: `app_id, channel, history_serial, message_serial, published_at_ms`. What the server
    does not have is left out.
    """

    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        asking = Asking(server)
        for batch in batches:
            found = []
            for row in batch.to_pylist():
                app = server.app(row["app_id"])
                if app is None:
                    continue
                serial = quote(row["message_serial"], safe="")
                path = f"{_channel_path(row['channel'])}/messages/{serial}"
                status, answer = asking.signed(app, path)
                if status == 200:
                    place = {name: row[name] for name in ("app_id", "channel", "history_serial")}
                    made = _versioned(answer["item"], row["published_at_ms"])
                    found.append({**place, **made})
            yield pa.RecordBatch.from_pylist(found, schema=MESSAGE_SCHEMA)
        asking.close()

    return ask


def states(server: Server) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow` over `partition`: their states."""

    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        asking = Asking(server)
        for batch in batches:
            found = []
            for partition in batch.column("partition").to_pylist():
                status, answer = asking.state(partition)
                if status not in (200, 400):
                    raise ServerUnreachable(f"the state of {partition}: {status} {answer}")
                is_told = status == 200
                found.append(
                    {
                        "partition": partition,
                        "position": answer["committed_id"] if is_told else 0,
                        "shown": canonical(answer["state"]) if is_told else None,
                    }
                )
            yield pa.RecordBatch.from_pylist(found, schema=STATE_SCHEMA)
        asking.close()

    return ask
