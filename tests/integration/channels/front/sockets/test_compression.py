"""Compressed and plain subscribers of one channel, on a real server."""

from pathlib import Path

from support.channels.peer import V2_QUERY, channels_server, handshake


async def test_who_asks_gets_compressed_frames_and_others_do_not(tmp_path: Path) -> None:
    """Both get the same messages, in both sizes, and the one that asked can also send so."""
    text = "a token, and another one; " * 40
    async with (
        channels_server(tmp_path, compression=True) as node,
        node.open(V2_QUERY, protocol=2, compression="deflate") as small,
        node.v2() as plain,
    ):
        await handshake(small)
        assert [each.name for each in small.socket.protocol.extensions] == ["permessage-deflate"]
        assert plain.socket.protocol.extensions == []
        await small.subscribe("room")  # compressed by the client, as all that it sends
        await plain.subscribe("room")
        for data in ("short", text):
            await node.api.publish("room", data)
            received = [await peer.expect("chat.message", "room") for peer in (small, plain)]
            assert received[0] == received[1]
            assert received[0]["data"] == data
