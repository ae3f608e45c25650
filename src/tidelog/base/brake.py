"""A brake: who produces faster than some can take waits for them, but not for ever."""

import asyncio
from collections.abc import Callable

PATIENCE_SECONDS = 5.0
"""For each who holds the brake. Nobody else is told anything meanwhile."""


class Brake:
    """Held by those who cannot take more now."""

    def __init__(self) -> None:
        self._holders: dict[Callable[[], None], float] = {}
        """Since when, by what to call if it takes too long."""
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for its release."""
        return bool(self._waiting)

    def hold(self, give_up: Callable[[], None]) -> None:
        """Take nothing more, please; `give_up` is called if that lasts too long for who waits."""
        self._holders.setdefault(give_up, asyncio.get_running_loop().time())

    def release(self, give_up: Callable[[], None]) -> None:
        """Go on; also if it was not held."""
        self._holders.pop(give_up, None)
        if not self._holders:
            for each in self._waiting:
                if not each.done():
                    each.set_result(None)

    async def released(self) -> None:
        """Return when nobody holds it.

        Who holds it for `PATIENCE_SECONDS` of this is given up.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while self._holders:
            free: asyncio.Future[None] = loop.create_future()
            self._waiting.append(free)
            first = max(began, min(self._holders.values()))
            try:
                async with asyncio.timeout_at(first + PATIENCE_SECONDS):
                    await free
            except TimeoutError:
                self._give_up(before=loop.time() - PATIENCE_SECONDS, began=began)
            finally:
                self._waiting.remove(free)

    def _give_up(self, *, before: float, began: float) -> None:
        for give_up, since in tuple(self._holders.items()):
            if max(began, since) <= before:
                self.release(give_up)
                give_up()
