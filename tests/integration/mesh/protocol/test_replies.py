"""What a broker answers has the members that the page shows (mesh 6.2, 7.2)."""

import msgspec
import pytest

from support.docs.markdown import Document, code
from support.mesh.peer import Broker, envelope, unique

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROTOCOL = Document("protocol/mesh.md")


def members(case: str) -> set[str]:
    """The members that the answer to a case is said to have."""
    [cell] = [row[2] for row in PROTOCOL.tables("6.2")[0] if row[0] == case]
    return {name.partition(":")[0] for name in code(cell)}


async def test_accepts_and_conflicts(broker: Broker) -> None:
    """A first accept, the same again, another send, another member."""
    slug = await broker.mesh()
    ana, ben = [await broker.member(slug) for _ in range(2)]
    await ana.topic("alerts")
    await ben.subscribe("alerts")
    client_id = unique()
    first = await ana.post(client_id, envelope())
    again = await ana.post(client_id, envelope())
    other = await ana.post(client_id, envelope(body="other"))
    stranger = await ben.post(client_id, envelope())
    assert set(first.json()) == members("first accept")
    assert set(again.json()) == members("first accept") | members("the same send again")
    assert set(other.json()) == members("another send under the id")
    assert set(stranger.json()) == set(other.json())
    assert stranger.json()["conflict"] == "sender_mismatch"


async def test_the_envelope(broker: Broker) -> None:
    """A message in the history and in a delivery has the members of the example, and its types."""
    slug = await broker.mesh()
    ana, ben = [await broker.member(slug) for _ in range(2)]
    await ana.topic("alerts")
    await ben.subscribe("alerts")
    example = msgspec.json.decode(PROTOCOL.blocks("7.2")[0])
    await ana.post(unique(), envelope(body=example["body"], meta=example["meta"]))
    [item] = (await ben.request("GET", "/history")).json()["items"]
    async with ben.connected() as wire:
        delivered = await wire.until("deliver")
    assert set(item) == set(example)
    assert set(delivered) == {*example, "type", "claim_id"}
    same = ("topic", "priority", "reply_to_id", "meta", "body", "body_encoding", "mention")
    assert {name: item[name] for name in same} == {name: example[name] for name in same}
    assert {name: type(value) for name, value in item.items()} == {
        name: type(value) for name, value in example.items()
    }
