"""Bounds of a server, divided among its fronts."""

from msgspec import structs

from tidelog.channels.settings import App
from tidelog.config.settings import Settings
from tidelog.serve.shares import LEAST_CACHED_BYTES, LEAST_CONNECTIONS, share_of_front

APP = App(id="a", key="a", secret="of the tests alone", max_api_requests_per_minute=100)


def test_fronts_together_have_what_one_process_has() -> None:
    """Of memory and of what an address may do; more only by rounding up."""
    whole = Settings(apps=[APP])
    front = share_of_front(whole, 4)
    assert front.per_address.max_connections * 4 == whole.per_address.max_connections
    assert front.per_address.max_joins_per_minute == 3
    assert front.sqlite.page_cache_bytes * 4 == whole.sqlite.page_cache_bytes
    assert front.channels.max_cached_text_bytes * 4 == whole.channels.max_cached_text_bytes
    recovery, of_front = whole.channels.connection_recovery, front.channels.connection_recovery
    assert of_front.buffer_bytes * 4 == recovery.buffer_bytes
    assert front.apps[0].max_api_requests_per_minute * 4 == APP.max_api_requests_per_minute
    assert front.limits.max_connections == whole.limits.max_connections, "of each process"


def test_no_share_is_too_small_and_none_larger_than_the_whole() -> None:
    """Also of very many; what has no limit gets none."""
    small = structs.replace(Settings().sqlite, page_cache_bytes=2 * 1024**2)
    unlimited = structs.replace(APP, max_api_requests_per_minute=0)
    front = share_of_front(Settings(sqlite=small, apps=[unlimited]), 256)
    assert front.per_address.max_joins_per_minute == 1
    assert front.postgresql.pool_size == LEAST_CONNECTIONS
    assert front.channels.max_cached_text_bytes == LEAST_CACHED_BYTES
    assert front.sqlite == small
    assert front.apps == [unlimited]
