"""Python clients of tidelog."""

from tidelog.client.channels.client import Channel, ChannelClient
from tidelog.client.channels.core import Authorization, ChannelOffline, SubscriptionRefused
from tidelog.client.channels.http import PublishFailed, PublishRefused
from tidelog.client.channels.message import Message, Reset
from tidelog.client.channels.publisher import ChannelPublisher, Receipt
from tidelog.client.channels.stream import MessageStream, StreamEnded
from tidelog.client.mesh.blocking import BlockingMeshClient
from tidelog.client.mesh.client import InboxMessage, MeshClient, MeshRefused, Sent
from tidelog.client.mesh.http import DaemonUnavailable
from tidelog.client.sync.blocking import BlockingSyncClient
from tidelog.client.sync.client import ClientOffline, DraftInvalid, PartitionsRefused, SyncClient
from tidelog.client.sync.saved_drafts import SavedDrafts
from tidelog.sync.protocol.tree import TreeNode

__all__ = [
    "Authorization",
    "BlockingMeshClient",
    "BlockingSyncClient",
    "Channel",
    "ChannelClient",
    "ChannelOffline",
    "ChannelPublisher",
    "ClientOffline",
    "DaemonUnavailable",
    "DraftInvalid",
    "InboxMessage",
    "MeshClient",
    "MeshRefused",
    "Message",
    "MessageStream",
    "PartitionsRefused",
    "PublishFailed",
    "PublishRefused",
    "Receipt",
    "Reset",
    "SavedDrafts",
    "Sent",
    "StreamEnded",
    "SubscriptionRefused",
    "SyncClient",
    "TreeNode",
]
