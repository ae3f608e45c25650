"""What a daemon is told of the history of the broker's log (mesh 4.7, 9.1)."""

import pytest

from support.mesh.peer import Broker, Member, Wire, envelope

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def send(member: Member, count: int) -> None:
    """Messages to oneself."""
    async with member.connected() as wire:
        for number in range(count):
            fields = envelope("dm", member.address, str(number))
            assert (await wire.post(f"{member.name}-{number}", fields))["code"] == 201


async def welcomed(member: Member, incarnation: str) -> tuple[str, int, int]:
    """What the welcome says of the history, to a daemon that knew one."""
    async with Wire.open(member) as wire:
        welcome = await wire.hello(incarnation=incarnation)
        return welcome["incarnation"], welcome["began"], welcome["history_seq"]


async def test_a_welcome_names_the_history(broker: Broker) -> None:
    """All of it is shared with this one, nothing with one that is unknown or was not named."""
    slug = await broker.mesh()
    ana = await broker.member(slug)
    await send(ana, 3)
    [(current,)] = await broker.database.run(
        "SELECT id FROM incarnation ORDER BY number DESC LIMIT 1"
    )
    assert await welcomed(ana, "") == (current, 0, 3)
    assert await welcomed(ana, current) == (current, 3, 3)
    assert await welcomed(ana, "another log's") == (current, 0, 3)


async def test_a_position_of_the_log_is_a_place_in_each_history(broker: Broker) -> None:
    """Between, before and after the messages of a mesh, whose places in the log have gaps."""
    ana, ben = await broker.member(await broker.mesh()), await broker.member(await broker.mesh())
    for member, count in ((ana, 2), (ben, 5), (ana, 3), (ben, 1)):
        member.name += "-"
        await send(member, count)
    mesh = await broker.service.mesh(ana.slug)
    assert mesh is not None
    places = await broker.database.run(
        f"SELECT committed_id, stream_serial FROM log WHERE stream = 'mesh/{mesh.id}' ORDER BY 1"
    )
    assert [serial for _, serial in places] == [1, 2, 3, 4, 5]
    [(head,)] = await broker.database.run("SELECT max(committed_id) FROM log")
    for position in range(head + 2):
        expected = sum(committed_id <= position for committed_id, _ in places)
        assert await broker.service._history.last_until(mesh, position, 5) == expected
    assert await broker.service._history.last_until(mesh, head, 0) == 0
