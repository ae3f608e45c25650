"""Every step of a delivery is counted, and only when it was made."""

from pathlib import Path

import pytest

from support.mesh.peer import Broker, envelope, running_broker, unique

STEP = "tidelog_broker_deliveries_total"


def steps(broker: Broker) -> dict[str, float]:
    """What was counted so far; webhooks are counted only once there are some."""
    names = ("pushed", "claimed", "acknowledged")
    return {name: broker.metric(STEP, step=name) for name in names}


@pytest.mark.asyncio
async def test_a_push_and_its_acknowledgement_are_counted(tmp_path: Path) -> None:
    """One for the push, one for the acknowledgement, none for the sender's own message."""
    async with running_broker(tmp_path, str(tmp_path / "tidelog.db")) as broker:
        slug = await broker.mesh()
        ana, ben = await broker.member(slug), await broker.member(slug)
        await ana.topic("alerts")
        await ben.topic("alerts")
        assert steps(broker) == {"pushed": 0, "claimed": 0, "acknowledged": 0}
        async with ben.connected() as wire:
            answer = await ana.post(unique(), envelope("topic", "alerts"))
            assert answer.status_code == 201, answer.text
            delivered = await wire.until("deliver")
            assert steps(broker) == {"pushed": 1, "claimed": 0, "acknowledged": 0}
            names = ("broker_message_id", "client_message_id", "claim_id")
            await wire.send({"type": "client_ack", **{name: delivered[name] for name in names}})
            await wire.ask("topics")  # frames are read in order: the acknowledgement was
            assert steps(broker) == {"pushed": 1, "claimed": 0, "acknowledged": 1}


@pytest.mark.asyncio
async def test_claims_of_a_queue_are_counted(tmp_path: Path) -> None:
    """Each claimed message, each completed one, and none of those whose lease was lost."""
    async with running_broker(tmp_path, str(tmp_path / "tidelog.db")) as broker:
        slug = await broker.mesh()
        ana = await broker.member(slug)
        made = await ana.request("POST", "/queues", {"queue": "thumbs"})
        assert made.status_code in (200, 201), made.text
        for _ in range(3):
            assert (await ana.post(unique(), envelope("queue", "thumbs"))).status_code == 201
        claimed = (await ana.request("POST", "/queues/thumbs/claim", {"limit": 3})).json()
        assert steps(broker) == {"pushed": 0, "claimed": 3, "acknowledged": 0}
        ids = [item["broker_message_id"] for item in claimed["items"]]
        body = {"claim_id": claimed["claim_id"], "broker_message_ids": [*ids[:2], "unknown"]}
        assert (await ana.request("POST", "/queues/thumbs/ack", body)).status_code == 409
        assert steps(broker) == {"pushed": 0, "claimed": 3, "acknowledged": 2}
