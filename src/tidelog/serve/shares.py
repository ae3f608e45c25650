"""What each front has of bounds that are meant for the whole server.

Memory and allowances are divided among the fronts, so that a server does not take more, or let more
pass, because it has more processes. Connections of an address or requests of an app need not spread
evenly, so a share may be used up before the whole is. How many connections there may be is said of
each process: a connection costs the one that has it, and those of a front that died must find room
at the others. Clients of an app that has none give up (channels 4004), so a share of that would
make a lost connection a lost client.
"""

from msgspec import structs

from tidelog.config.settings import Settings

LEAST_CACHED_BYTES = 4 * 1024**2
"""Of each cache of a front: below it would read again and again what it has just sent."""

LEAST_UNAUTHENTICATED_BYTES = 1024**2
"""Requests of strangers that are under way; one may be larger, and is then the only one."""

LEAST_CONNECTIONS = 2
"""To PostgreSQL: one for short reads and one for long ones."""


def share_of_front(settings: Settings, fronts: int) -> Settings:
    """The settings of one of so many fronts.

    The owner has what a server of one process has: it keeps what decisions need.
    """

    def share(whole: int, least: int = 1) -> int:
        return min(whole, max(least, -(-whole // fronts)))

    recovery = settings.channels.connection_recovery
    per_address = settings.per_address
    return structs.replace(
        settings,
        limits=structs.replace(
            settings.limits,
            unauthenticated_total_bytes=share(
                settings.limits.unauthenticated_total_bytes, LEAST_UNAUTHENTICATED_BYTES
            ),
        ),
        per_address=structs.replace(
            per_address,
            max_connections=share(per_address.max_connections),
            max_subscriptions=share(per_address.max_subscriptions),
            max_failed_authentications_per_minute=share(
                per_address.max_failed_authentications_per_minute
            ),
            max_joins_per_minute=share(per_address.max_joins_per_minute),
        ),
        sqlite=structs.replace(
            settings.sqlite,
            page_cache_bytes=share(settings.sqlite.page_cache_bytes, 3 * LEAST_CACHED_BYTES),
        ),
        postgresql=structs.replace(
            settings.postgresql,
            pool_size=share(settings.postgresql.pool_size, LEAST_CONNECTIONS),
        ),
        channels=structs.replace(
            settings.channels,
            max_cached_text_bytes=share(
                settings.channels.max_cached_text_bytes, LEAST_CACHED_BYTES
            ),
            connection_recovery=structs.replace(
                recovery, buffer_bytes=share(recovery.buffer_bytes, LEAST_CACHED_BYTES)
            ),
        ),
        apps=[
            structs.replace(
                app, max_api_requests_per_minute=share(app.max_api_requests_per_minute, 0)
            )
            for app in settings.apps
        ],
    )
