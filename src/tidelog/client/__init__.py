"""Python clients of tidelog."""

from tidelog.client.sync import ClientOffline, DraftInvalid, SyncClient
from tidelog.client.sync_blocking import BlockingSyncClient

__all__ = ["BlockingSyncClient", "ClientOffline", "DraftInvalid", "SyncClient"]
