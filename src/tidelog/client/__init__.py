"""Python clients of tidelog."""

from tidelog.client.channels.blocking import BlockingChannelPublisher
from tidelog.client.channels.blocking_run import BlockingRun
from tidelog.client.channels.blocking_stream import BlockingMessageStream
from tidelog.client.channels.calls import (
    ChannelInfo,
    MessageVersion,
    Page,
    Receipt,
    StoredMessage,
)
from tidelog.client.channels.client import Channel, ChannelClient
from tidelog.client.channels.core import (
    Authorization,
    ChannelOffline,
    EventRefused,
    SubscriptionRefused,
)
from tidelog.client.channels.exchange import PublishFailed, PublishRefused
from tidelog.client.channels.granting import UserAuthorization
from tidelog.client.channels.message import Message, Reset
from tidelog.client.channels.publisher import ChannelPublisher
from tidelog.client.channels.run import Run, RunCancelled, RunFailed, ToolCall
from tidelog.client.channels.stream import MessageStream
from tidelog.client.channels.token_buffer import StreamEnded
from tidelog.client.mesh.blocking import BlockingMeshClient
from tidelog.client.mesh.client import InboxMessage, MeshClient, MeshRefused, Sent
from tidelog.client.mesh.http import DaemonUnavailable
from tidelog.client.sync.blocking import BlockingSyncClient
from tidelog.client.sync.client import ClientOffline, DraftInvalid, PartitionsRefused, SyncClient
from tidelog.client.sync.saved_drafts import SavedDrafts
from tidelog.sync.protocol.tree import TreeNode

__all__ = [
    "Authorization",
    "BlockingChannelPublisher",
    "BlockingMeshClient",
    "BlockingMessageStream",
    "BlockingRun",
    "BlockingSyncClient",
    "Channel",
    "ChannelClient",
    "ChannelInfo",
    "ChannelOffline",
    "ChannelPublisher",
    "ClientOffline",
    "DaemonUnavailable",
    "DraftInvalid",
    "EventRefused",
    "InboxMessage",
    "MeshClient",
    "MeshRefused",
    "Message",
    "MessageStream",
    "MessageVersion",
    "Page",
    "PartitionsRefused",
    "PublishFailed",
    "PublishRefused",
    "Receipt",
    "Reset",
    "Run",
    "RunCancelled",
    "RunFailed",
    "SavedDrafts",
    "Sent",
    "StoredMessage",
    "StreamEnded",
    "SubscriptionRefused",
    "SyncClient",
    "ToolCall",
    "TreeNode",
    "UserAuthorization",
]
