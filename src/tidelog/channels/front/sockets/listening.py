"""A connection that is sent one channel as server-sent events, and cannot say anything itself.

It is a V2 connection like any other. What a socket would have said, to resume and to subscribe, the
server says for it; so it is one subscriber among others, of the same fan-out (channels 6.5).
"""

import asyncio
import time
from typing import TYPE_CHECKING

from tidelog.base.serving.address_quota import AddressQuota
from tidelog.base.serving.surface import Outlet
from tidelog.channels.front.sockets.connection import Connection
from tidelog.channels.protocol import wire
from tidelog.channels.protocol.event_stream import EventEncoding, Wanted, credentials_of
from tidelog.channels.protocol.session import Session
from tidelog.channels.protocol.tokens import Claims
from tidelog.channels.protocol.upgrade import Options
from tidelog.channels.settings import App

if TYPE_CHECKING:
    from tidelog.channels.front.service import ChannelsService


class Listening(Connection):
    """A `Conversation` in which only the server speaks."""

    def __init__(
        self,
        service: "ChannelsService",
        app: App,
        wanted: Wanted,
        claims: Claims | None,
        socket_id: str,
        quota: AddressQuota,
    ) -> None:
        """Judge whether it may listen; nothing is opened yet.

        Raises:
            Refused: it may not.
        """
        options = Options(wire.V2, wanted.append_mode, rollup_window=wanted.rollup_window)
        super().__init__(service, app, options, socket_id, quota)
        self._wanted = wanted
        self._credentials = credentials_of(app, socket_id, wanted, claims)
        self.encode = EventEncoding()
        self.session = Session(
            app,
            service.settings,
            self._frames,
            socket_id=socket_id,
            version=wire.V2,
            append_mode=wanted.append_mode,
            token=claims,
            now=asyncio.get_running_loop().time(),
        )
        self.session.check_subscription(wanted.fields(self._credentials, with_rewind=True))

    def opened(self, outlet: Outlet) -> None:
        """See `Conversation.opened`."""
        self._outlet, self.push = outlet, outlet.push
        self._service.opened(self)
        self._act_at_once(self.session.opening())
        self._work = asyncio.create_task(self._listen())

    def received(self, payload: bytes, *, is_text: bool) -> None:
        """Nothing is."""

    async def _listen(self) -> None:
        wanted = self._wanted
        resume = wanted.resume()
        if resume is not None:
            await self._say(resume)
        is_new = wanted.channel not in self.resumed  # and so is one that cannot go on
        self.encode.is_rewinding = is_new and wanted.rewind is not None and int(wanted.rewind) > 0
        await self._say(wanted.subscribe(self._credentials, with_rewind=is_new))
        if wanted.channel not in self.subscriptions and self._outlet is not None:
            self._outlet.close(wire.CHANNEL_ERROR)  # refused, as an event has said

    async def _say(self, message: bytes) -> None:
        """Do what a socket is done that says this."""
        now = asyncio.get_running_loop().time()
        actions = self.session.receive(message, is_text=True, now=now, unix_now=time.time())
        actions = self._act_at_once(actions)
        while actions:
            await self._do(actions[0])
            actions = self._act_at_once(actions[1:])
