"""TLS of the connections that we open: what is trusted is read once, and never on an event loop.

Reading the system's certificates takes some 20 ms, during which a loop would do nothing else.
"""

import asyncio
import functools
import ssl
from urllib.parse import urlsplit


@functools.cache
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()


async def context_for(url: str) -> ssl.SSLContext | None:
    """What a connection to `https:` or `wss:` is opened with; None for one without TLS."""
    return await asyncio.to_thread(_context) if _is_tls(url) else None


def blocking_context_for(url: str) -> ssl.SSLContext | None:
    """The same for a thread that has no event loop to hold up."""
    return _context() if _is_tls(url) else None


def _is_tls(url: str) -> bool:
    return urlsplit(url).scheme in ("https", "wss")
