"""Second act, sync: two task lists change without a network, meet again and agree."""

import time
from random import Random
from typing import Any

import jwt

from tidelog.client import SyncClient
from tidelog.demo.narration import Claim, Narrator
from tidelog.demo.stage import MODEL, PARTITION, Stage
from tidelog.demo.waiting import until
from tidelog.sync.protocol.profiles import Model

SHARED = ("Paint the hull", "Mend the net", "Fill the tank")
OF_ADA = ("Buy rope", "Oil the winch", "Call the pilot")
OF_BO = ("Check the lamps", "Wash the deck", "Bake bread")

model = Model.parse(MODEL["tree_targets"], MODEL["schemas"], MODEL["model_version"])


async def play(stage: Stage, narrator: Narrator, random: Random) -> list[Claim]:
    """Play it; returns what was proved by comparing both lists with the server's."""
    narrator.act("Sync", "work without a network, then agree on one order")
    async with client(stage, "ada", online=True) as ada:
        await submit(ada, [_add(name) for name in SHARED], committed=True)
    async with client(stage, "bo", online=True) as bo:
        await bo.sync()
    narrator.say(f"Ada and Bo both have {', '.join(SHARED)}; now the network is gone")
    made = 0
    drafts = {
        "ada": [*map(_add, random.sample(OF_ADA, 2)), ticked(SHARED[0])],
        "bo": [*map(_add, random.sample(OF_BO, 3)), ticked(SHARED[1]), _to_top(SHARED[2])],
    }
    panes = {}
    for name, events in drafts.items():
        async with client(stage, name, online=False) as own:
            await submit(own, events, committed=False)
            panes[f"{name}, offline"] = _shown(own)
            made += len(own.pending())
    narrator.show(panes)
    narrator.say(f"{made} changes wait on two disks; the network is back")
    async with client(stage, "ada", online=True) as ada:
        await until(lambda: _is_committed(ada))  # so that the order is the same every time
        async with client(stage, "bo", online=True) as bo:
            await until(lambda: _do_they_agree(ada, bo))
            return await _claims(stage, narrator, ada, bo)


async def _is_committed(client: SyncClient) -> bool:
    return not client.pending()


async def _do_they_agree(ada: SyncClient, bo: SyncClient) -> bool:
    is_done = not ada.pending() and not bo.pending()
    return is_done and ada.view(PARTITION) == bo.view(PARTITION)


async def _claims(stage: Stage, narrator: Narrator, ada: SyncClient, bo: SyncClient) -> list[Claim]:
    narrator.show({"ada": _shown(ada), "bo": _shown(bo)})
    answer = await stage.ask(f"/sync/admin/snapshot?partition={PARTITION}")
    ours = ada.view(PARTITION)
    return [
        Claim("every offline change was committed", len(ada.pending()) + len(bo.pending()), 0),
        Claim("both lists are the same", ours, bo.view(PARTITION)),
        Claim("and the same as the server's", ours, answer["state"]),
    ]


def client(stage: Stage, name: str, *, online: bool) -> SyncClient:
    """The task list of a person, with or without a network."""

    async def token() -> str:
        claims = {"client_id": name, "exp": int(time.time()) + 3600}
        return jwt.encode(
            {**claims, "allowed_partitions": [PARTITION]}, stage.jwt_secret, algorithm="HS256"
        )

    return SyncClient(
        f"{stage.socket_url}/sync" if online else None,
        client_id=name,
        token=token,
        store=stage.home / f"{name}.db",
        model=model,
        partitions=[PARTITION],
    )


async def submit(own: SyncClient, events: list[dict[str, Any]], *, committed: bool) -> None:
    """Make changes; if asked to, wait until the server has committed each."""
    for event in events:
        draft = await own.submit(partitions=[PARTITION], event=event)
        if committed:
            await own.wait(draft.id)


def _key(text: str) -> str:
    return text.lower().replace(" ", "-")


def _change(kind: str, **payload: object) -> dict[str, Any]:
    return {"type": kind, "payload": {"target": "tasks", **payload}}


def _add(text: str) -> dict[str, Any]:
    value = {"id": _key(text), "text": text}
    return _change("treePush", value=value, options={"position": "last"})


def ticked(text: str, *, done: bool = True) -> dict[str, Any]:
    """A task is done, or is not after all."""
    return _change("treeUpdate", value={"done": done}, options={"id": _key(text)})


def _to_top(text: str) -> dict[str, Any]:
    return _change("treeMove", options={"id": _key(text), "position": "first"})


def _shown(client: SyncClient) -> str:
    tasks = client.view(PARTITION).get("tasks", {"items": {}, "tree": []})
    items = (tasks["items"][node["id"]] for node in tasks["tree"])
    return "\n".join(f"{'☑' if item.get('done') else '☐'} {item['text']}" for item in items)
