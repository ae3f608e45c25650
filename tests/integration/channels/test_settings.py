"""What channels do by default, and what they say of a setting that is in the way."""

import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

from msgspec import Struct

import tidelog.channels
from tidelog.client import ChannelPublisher
from tidelog.config.settings import Settings
from tidelog.testing.process import CREDENTIALS, ServerProcess

NAMED = re.compile(r'"((?:channels|apps)\.[a-z_.]+)"')


async def test_messages_can_change_unless_it_is_switched_off(tmp_path: Path) -> None:
    """A server with nothing but its credentials takes a stream (channels 8.1)."""
    app = [CREDENTIALS[f"TIDELOG_APP_{name}"] for name in ("ID", "KEY", "SECRET")]
    with ServerProcess(data_dir=tmp_path) as server:
        server.start()
        async with ChannelPublisher(server.url, app[0], app[1], app[2]) as publisher:
            async with publisher.stream("room", "answer") as answer:
                for token in ("High ", "water."):
                    await answer.write(token)
            receipt = await publisher.update("room", answer.message_serial, data="Low water.")
            assert receipt.delivery_serial == 3 or receipt.delivery_serial == 4


def test_every_setting_that_an_error_names_exists() -> None:
    """Whoever reads such an error can look the name up, and set it."""
    [folder] = tidelog.channels.__path__
    named = {
        name
        for file in Path(folder).rglob("*.py")
        for name in NAMED.findall(file.read_text(encoding="utf-8"))
    }
    assert {"channels.versioned_messages.enabled", "apps.enable_client_messages"} <= named
    assert len(named) > 15
    for name in sorted(named):
        kind: Any = Settings
        for part in name.split("."):
            hints = get_type_hints(kind)
            assert part in hints, name
            kind = hints[part]
            for inner in get_args(kind):
                if isinstance(inner, type) and issubclass(inner, Struct):
                    kind = inner
