"""Do the rows of the mesh agree with the log? Deliveries, mentions and ids, each with its message.

That none of them is missing is checked by `orphan_check`. What does not follow from a message
(members, topics, settings, how far a delivery has come) carries seals; of those that are never
removed, one that a message names and that is not there is missing.
"""

import time
from collections.abc import AsyncIterator

from tidelog.log.derived import Damage, Looked, pages, shown
from tidelog.mesh.protocol.known_ids import stored_outcome
from tidelog.mesh.protocol.model import PUSH, queue_recipient, stream_name
from tidelog.mesh.upkeep.orphan_check import PAGE, find_orphans, read_content
from tidelog.store.engine import Store

DELIVERIES = 500
"""Rows of one read; they are read without content."""


async def verify_mesh(store: Store) -> AsyncIterator[Looked]:
    """A `Verifier`."""
    async for looked in _verify_deliveries(store):
        yield looked
    async for looked in _verify_mentions(store):
        yield looked
    async for looked in _verify_ids(store):
        yield looked
    async for finding in find_orphans(store, time.time_ns() // 1_000_000):
        table = f"mesh_{finding.relation}"
        yield Looked(table, 0, (Damage(table, finding.key, finding.problem),))


async def _verify_deliveries(store: Store) -> AsyncIterator[Looked]:
    missing: set[Damage] = set()
    async for page in pages(store, "mesh_verify_deliveries", ("", "", "", ""), DELIVERIES):
        damage = []
        for row in page:
            message, recipient, channel, endpoint_id, mesh_id, _, created_at, is_known, *entry = row
            if not is_known:
                named = shown(mesh_id, recipient)
                text = "is missing, although a message is for it"
                missing.add(Damage("mesh_member", named, text))
            problem = _delivery_problem(message, recipient, channel, created_at, *entry)
            if problem:
                key = shown(message, recipient, channel, endpoint_id)
                damage.append(Damage("mesh_delivery_queue", key, problem))
        yield Looked("mesh_delivery_queue", len(page), damage)
    for each in sorted(missing):
        yield Looked(each.table, 0, (each,))


def _delivery_problem(
    message: str,
    recipient: str,
    channel: str,
    created_at: int,
    entity: str | None,
    kind: str,
    ref: str,
    committed_at: int,
) -> str | None:
    if entity != message:
        return "its message is not at its place in the history"
    if created_at != committed_at:
        return f"created_at is {created_at}, its message is of {committed_at}"
    addressed = {"send.dm": ref, "send.queue": queue_recipient(ref)}
    if channel == PUSH and recipient != addressed.get(kind, recipient):
        return f"its message is addressed to {addressed[kind]}"
    return None


async def _verify_mentions(store: Store) -> AsyncIterator[Looked]:
    async for page in pages(store, "mesh_verify_mentions", ("", ""), PAGE):
        damage = []
        for message, mentioned, _, _, created_at, entity, committed_at, body in page:
            said = read_content(body)
            problem = None
            if entity != message:
                problem = "its message is not at its place in the history"
            elif created_at != committed_at:
                problem = f"created_at is {created_at}, its message is of {committed_at}"
            elif said is not None and mentioned not in said.mentions:
                problem = "its message mentions others"
            if problem:
                damage.append(Damage("mesh_mention_index", shown(message, mentioned), problem))
        yield Looked("mesh_mention_index", len(page), damage)


async def _verify_ids(store: Store) -> AsyncIterator[Looked]:
    """An id without its entry is left to the rules of `orphan_check`."""
    missing: set[Damage] = set()
    async for page in pages(store, "mesh_verify_ids", (stream_name(""), ""), PAGE):
        damage = []
        for row in page:
            scope, key, owner, outcome, seen_at, *entry, body, has_mesh, has_sender = row
            serial, entity, kind, ref, actor, at = entry
            if entity is None:
                continue
            mesh_id = scope.removeprefix(stream_name(""))
            named = (
                ("mesh_setting", mesh_id, has_mesh),
                ("mesh_member", owner, has_sender),
            )
            missing |= {
                Damage(table, name, "is missing, although a message belongs to it")
                for table, name, is_there in named
                if not is_there
            }
            said = read_content(body)
            expected = stored_outcome(entity, serial, kind.removeprefix("send."), ref)
            is_its_own = said is None or said.client_message_id == key
            if not is_its_own or (owner, outcome, seen_at) != (actor, expected, at):
                damage.append(Damage("dedupe", shown(scope, key), "is not that of its message"))
        yield Looked("dedupe", 0, damage)
    for each in sorted(missing):
        yield Looked(each.table, 0, (each,))
