"""What fronts ask about meshes and their members, as decisions (mesh 9.4)."""

from typing import assert_never

from tidelog.base.clock import Clock
from tidelog.base.ids import UlidFactory
from tidelog.mesh import messages
from tidelog.mesh.decide import membership
from tidelog.mesh.decide.gone_recipients import MEMBER_LEFT, MEMBER_REVOKED
from tidelog.mesh.decide.membership import Limits
from tidelog.mesh.decide.per_mesh_settings import ChangeMesh
from tidelog.mesh.messages import Change
from tidelog.mesh.settings import MeshSettings
from tidelog.mesh.upkeep.questions import NamedItem


class Changes:
    """Adds what the owner knows: the time, ids and the configured limits."""

    def __init__(self, settings: MeshSettings, clock: Clock, ulids: UlidFactory) -> None:
        self._clock = clock
        self._ulids = ulids
        self._limits = Limits(
            members=settings.max_members,
            topics=settings.max_topics,
            topics_per_member=settings.max_topics_per_member,
            subscribers=settings.max_topic_subscribers,
            queues=settings.max_queues,
            queues_per_member=settings.max_queues_per_member,
            webhooks=settings.max_webhooks,
            invites=settings.max_open_invites,
        )

    def item_of(self, asked: Change) -> NamedItem:
        """The decision that was asked for."""
        now, limits = self._clock.now_ms(), self._limits
        match asked:
            case messages.CreateMesh(mesh):
                return membership.CreateMesh(mesh)
            case messages.ChangeMesh(mesh, fields):
                return ChangeMesh(mesh, fields)
            case messages.Invite(mesh_id, invite_hash, lifetime_ms):
                return membership.Invite(mesh_id, invite_hash, lifetime_ms, now, limits)
            case messages.RemoveInvite(mesh_id, invite_hash):
                return membership.RemoveInvite(mesh_id, invite_hash)
            case messages.Join(mesh_id, invite_hash, public_hex, name):
                member_id = self._ulids.mint()
                return membership.Join(
                    mesh_id, invite_hash, member_id, public_hex, name, now, limits
                )
            case messages.EndMembership(mesh_id, public_hex, is_revoked):
                reason = MEMBER_REVOKED if is_revoked else MEMBER_LEFT
                return membership.Revoke(mesh_id, public_hex, reason)
            case messages.CreateTopic(mesh_id, member, topic):
                return membership.CreateTopic(mesh_id, member, topic, now, limits)
            case messages.SetSubscription(mesh_id, member, topic, is_wanted):
                return membership.SetSubscription(mesh_id, member, topic, is_wanted, limits)
            case messages.RemoveTopic(mesh_id, asking, topic):
                return membership.RemoveTopic(mesh_id, asking, topic)
            case messages.CreateQueue(mesh_id, member, queue_id):
                return membership.CreateQueue(mesh_id, member, queue_id, now, limits)
            case messages.RemoveQueue(mesh_id, asking, queue_id):
                return membership.RemoveQueue(mesh_id, asking, queue_id)
            case messages.AddWebhook(mesh_id, topic, url, secret):
                endpoint_id = self._ulids.mint()
                return membership.AddWebhook(mesh_id, endpoint_id, topic, url, secret, now, limits)
            case messages.RemoveWebhook(mesh_id, endpoint_id):
                return membership.RemoveWebhook(mesh_id, endpoint_id)
            case _:
                assert_never(asked)
