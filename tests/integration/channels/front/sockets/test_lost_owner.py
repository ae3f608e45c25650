"""A socket whose owner is lost while it asks for something."""

from pathlib import Path

import pytest

from support.channels.peer import channels_server


@pytest.mark.inside
async def test_a_resume_that_loses_its_owner_is_no_failed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client is told to come back, with the position it has; the store is not to blame."""
    async with channels_server(tmp_path) as node:
        async with node.v2() as peer:
            subscribed = await peer.subscribe("room")
        subscribing, link = node.surface.service.subscribing, node.surface.service.link
        catch_up = subscribing._catch_up_with_log

        async def catch_up_and_lose() -> None:
            await catch_up()
            link.lost()

        monkeypatch.setattr(subscribing, "_catch_up_with_log", catch_up_and_lose)
        async with node.v2() as peer:
            position = {"serial": subscribed["serial"], "stream_id": subscribed["stream_id"]}
            await peer.resume(room=position)
            frame = await peer.expect(":error")
            assert frame["data"]["code"] == 4100
