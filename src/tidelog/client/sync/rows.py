"""One row of `events` in a client's file, and its columns."""

from typing import Any, Literal, NamedTuple

import orjson

from tidelog.client.sync.messages import Json

Status = Literal["draft", "committed", "rejected"]


class StoredEvent(NamedTuple):
    """One row of `events`, its JSON parsed."""

    id: str
    committed_id: int | None
    event: Json
    partitions: tuple[str, ...]
    client_id: str
    status: Status
    draft_clock: int | None
    """Number among the local drafts; None for what others wrote."""
    created_at: int
    status_updated_at: int | None
    reject_reason: str | None
    errors: tuple[Json, ...]


def stored_event(row: tuple[Any, ...]) -> StoredEvent:
    """A row of `events`; `ValueError` if it is damaged."""
    event_id, committed_id, kind, payload, extra, partitions, client_id, status = row[:8]
    draft_clock, created_at, status_updated_at, reject_reason, errors = row[8:]
    return StoredEvent(
        event_id,
        committed_id,
        event_of(kind, payload, extra),
        tuple(orjson.loads(partitions)),
        client_id,
        status,
        draft_clock,
        created_at,
        status_updated_at,
        reject_reason,
        () if errors is None else tuple(orjson.loads(errors)),
    )


def json_text(value: object) -> str:
    """How values are stored that are not plain columns."""
    return orjson.dumps(value).decode()


def event_columns(event: Json) -> tuple[str, str, str | None]:
    """An event as type, payload and whatever else it has."""
    extra = {key: value for key, value in event.items() if key not in ("type", "payload")}
    return event["type"], json_text(event["payload"]), json_text(extra) if extra else None


def event_of(kind: str, payload: str, extra: str | None) -> Json:
    """The event of these columns; `ValueError` if they are damaged."""
    event = {"type": kind, "payload": orjson.loads(payload)}
    return event if extra is None else event | orjson.loads(extra)
