"""What a draft must be before it is stored: the server's rules, applied early (sync 8.1, 8.2)."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import orjson

from tidelog.base.data.canonical import canonical
from tidelog.base.errors import NotCanonicalizable
from tidelog.client.sync.messages import Json
from tidelog.client.sync.rows import StoredEvent
from tidelog.client.sync.store import SyncStore
from tidelog.client.sync.views import Views
from tidelog.sync.protocol.fault import Fault
from tidelog.sync.protocol.partitions import normal_set, partition_faults
from tidelog.sync.protocol.profiles import (
    CANONICAL,
    Model,
    accepted_types,
    event_faults,
    number_faults,
    tree_faults,
)

MAX_ID_BYTES = 128


class Drafts:
    """Where the application's events enter: judged here, stored, shown at once."""

    def __init__(
        self,
        store: SyncStore,
        views: Views,
        model: Model,
        profile: str,
        uuid: Callable[[], str],
    ) -> None:
        self.model = model
        self._store = store
        self._views = views
        self._profile = profile
        self._uuid = uuid

    def submit(
        self,
        partitions: Sequence[str],
        event: Json,
        event_id: str | None,
        *,
        checked_in: Collection[str],
    ) -> StoredEvent | list[Fault]:
        """Store a draft, or return why it cannot be one.

        Whether it can be applied is checked only in the partitions `checked_in`, whose state is
        known here. Submitting the same draft again returns the stored one.
        """
        event_id = self._uuid() if event_id is None else event_id
        faults = draft_faults(self.model, self._profile, event_id, partitions, event)
        if faults:
            return faults
        event = orjson.loads(orjson.dumps(event))
        names = normal_set(partitions)
        known = self._store.find(event_id)
        if known is not None:
            same = known.partitions == names and canonical(known.event) == canonical(event)
            return known if same else [Fault("id", "is that of another event")]
        for partition in names:
            if partition in checked_in:
                faults = self._views.shown(partition).faults(event)
                if faults:
                    return faults
        draft = self._store.add_draft(event_id, names, event)
        self._views.drafted(draft)
        return draft


def draft_faults(
    model: Model, profile: str, event_id: object, partitions: Sequence[str], event: Any
) -> list[Fault]:
    """What is wrong with a draft whatever the state; the first rule that fails decides."""
    if not isinstance(event_id, str) or not 0 < _size(event_id) <= MAX_ID_BYTES:
        return [Fault("id", f"must be a string of 1 to {MAX_ID_BYTES} bytes")]
    if isinstance(partitions, str) or not all(isinstance(name, str) for name in partitions):
        return [Fault("partitions", "must be a list of strings")]
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        return [Fault("event.type", "must be a string")]
    if not isinstance(event.get("payload"), dict):
        return [Fault("event.payload", "must be an object")]
    if faults := partition_faults(partitions) or number_faults(event):
        return faults
    try:
        canonical(event)
        orjson.dumps([event_id, *partitions, event])
    except (NotCanonicalizable, orjson.JSONEncodeError) as error:
        return [Fault("event", str(error))]
    if event["type"] not in accepted_types(profile):
        return [Fault("event.type", f"is not of profile {profile}")]
    judge = event_faults if profile == CANONICAL else tree_faults
    return judge(model, event)


def _size(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))
