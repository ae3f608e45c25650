"""An agent, the page that talks to it, and tokens for those who may.

python server.py, with tidelog at http://127.0.0.1:8080 (`tidelog serve --dev`).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from tidelog.client import ChannelClient, ChannelPublisher, Message

TIDELOG = "http://127.0.0.1:8080"
PORT = 8000

publisher = ChannelPublisher(TIDELOG, "app-id", "app-key", "app-secret")


async def ask_model(question: str) -> AsyncIterator[str]:
    """Put the client of your model here."""
    for word in f"You asked: {question} The moon pulls the sea. ".split():
        yield word + " "
        await asyncio.sleep(0.1)


async def answer(question: Message) -> None:
    """One run, under the id that the page chose: so the page can stop it at any time."""
    transport = question.extras["ai"]["transport"]
    text = "".join(part["text"] for part in question.json()["parts"] if part["type"] == "text")
    async with publisher.run(
        question.channel, client_id=transport["input-client-id"], run_id=transport["run-id"]
    ) as run:
        await run.write_all(ask_model(text))


async def work() -> None:
    """Answer whatever is asked on the channel."""
    async with (
        ChannelClient(TIDELOG, "app-key") as client,
        client.subscribe("chat") as channel,
        asyncio.TaskGroup() as answers,
    ):
        async for message in channel:
            if message.name == "ai-input":
                answers.create_task(answer(message))


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """The agent works as long as the application is there."""
    async with publisher:
        working = asyncio.create_task(work())
        yield
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


app = FastAPI(lifespan=lifespan)


@app.post("/token")
async def token() -> str:
    """Put your session here: this one takes everybody for ana."""
    return publisher.token("ana", {"chat": ["subscribe", "publish", "history"]})


app.mount("/", StaticFiles(directory=Path(__file__).parent / "public", html=True))


if __name__ == "__main__":
    uvicorn.run(app, port=PORT)
