"""Python clients of tidelog."""

from tidelog.client.channel import Channel, ChannelClient
from tidelog.client.channel_core import Authorization, ChannelOffline, SubscriptionRefused
from tidelog.client.channel_http import PublishFailed, PublishRefused
from tidelog.client.channel_message import Message, Reset
from tidelog.client.channel_publisher import ChannelPublisher, Receipt
from tidelog.client.channel_stream import MessageStream, StreamEnded
from tidelog.client.mesh import InboxMessage, MeshClient, MeshRefused, Sent
from tidelog.client.mesh_blocking import BlockingMeshClient
from tidelog.client.mesh_http import DaemonUnavailable
from tidelog.client.sync import ClientOffline, DraftInvalid, PartitionsRefused, SyncClient
from tidelog.client.sync_blocking import BlockingSyncClient
from tidelog.client.sync_saved import SavedDrafts
from tidelog.sync.tree import TreeNode

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
