"""The order of the acts, and what is left to say at the end."""

import json
import time
from random import Random

from msgspec import Struct

from tidelog.demo.acts import channels, mesh, pipeline, sync
from tidelog.demo.figures import Figure, counted
from tidelog.demo.narration import Claim, Narrator
from tidelog.demo.stage import Stage

SEED = 7


class Summary(Struct, frozen=True, kw_only=True):
    """What happened, counted from the log, and what was proved."""

    figures: list[Figure]
    claims: list[Claim]
    seconds: float
    head: int
    """Position of the log's last entry."""
    health: str
    """What the server says of itself at the end."""
    dashboard: str
    report: str | None
    """Made by the pipeline, if it ran."""
    data_dir: str
    config: str

    @property
    def holds(self) -> bool:
        """Whether everything that was promised is so."""
        return all(claim.holds for claim in self.claims)


async def play_surfaces(stage: Stage, narrator: Narrator, seed: int = SEED) -> list[Claim]:
    """The acts that write, on a stage whose server runs.

    The seed decides the words, the tasks and when the broker dies, so two tours with the same seed
    write the same entries.
    """
    random = Random(seed)  # noqa: S311 - a play, not a secret
    claims: list[Claim] = []
    for act in (channels, sync, mesh):
        for claim in await act.play(stage, narrator, random):
            narrator.proved(claim)
            claims.append(claim)
    return claims


async def run(
    stage: Stage, narrator: Narrator, seed: int = SEED, *, with_pipeline: bool = True
) -> Summary:
    """All acts and then, unless it is left out, the pipeline over what they wrote."""
    began = time.monotonic()
    claims = await play_surfaces(stage, narrator, seed)
    figures, found = (
        await pipeline.play(stage, narrator)
        if with_pipeline
        else (await counted(stage, with_lake=False), [])
    )
    verified = await stage.tidelog("log", "verify", "--config", str(stage.config))
    found.append(Claim("the digest chain verifies", verified.partition(":")[0], "sound"))
    for claim in found:
        narrator.proved(claim)
    stats = json.loads(await stage.tidelog("log", "stats", "--json", "--config", str(stage.config)))
    return Summary(
        figures=figures,
        claims=[*claims, *found],
        seconds=round(time.monotonic() - began, 1),
        head=stats["head"],
        health=json.dumps(await stage.ask("/healthz")),
        dashboard=stage.dashboard,
        report=str(stage.report) if with_pipeline else None,
        data_dir=str(stage.data_dir),
        config=str(stage.config),
    )
