"""A chat whose answers are in a channel, with FastAPI; flask_chat.py is the same with Flask.

python fastapi_chat.py, with tidelog at http://127.0.0.1:8080 (`tidelog serve --dev`).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import uvicorn
from fastapi import Body, Depends, FastAPI, HTTPException
from fastapi.responses import FileResponse

from tidelog.client import ChannelPublisher

publisher = ChannelPublisher("http://127.0.0.1:8080", "app-id", "app-key", "app-secret")
answers: set[asyncio.Task[None]] = set()


async def ask_model(question: str) -> AsyncIterator[str]:
    """Put the client of your model here."""
    for word in f"You asked: {question} The moon pulls the sea.".split():
        yield word + " "
        await asyncio.sleep(0.1)


def current_user() -> str:
    """Put your session here: this one takes everybody for ana."""
    return "ana"


User = Annotated[str, Depends(current_user)]
Text = Annotated[str, Body(embed=True, max_length=10_000)]


async def answer(user: str, question: str) -> None:
    """A run for the user, who may stop it from any device: then `write_all` ends."""
    async with publisher.run(f"private-chat-{user}", client_id=user) as run:
        await run.write_all(ask_model(question))


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Answers that are not finished when the application ends are cancelled, and pages see it."""
    async with publisher:
        yield
        for task in answers:
            task.cancel()
        await asyncio.gather(*answers, return_exceptions=True)


app = FastAPI(lifespan=lifespan)


@app.post("/ask", status_code=202)
async def ask(user: User, question: Text) -> None:
    """Keep the question, and answer it in the channel: no request waits for the answer."""
    said = {"ai": {"transport": {"input-client-id": user, "role": "user"}}}
    await publisher.publish(f"private-chat-{user}", "ai-input", question, extras=said)
    task = asyncio.create_task(answer(user, question))
    answers.add(task)
    task.add_done_callback(answers.discard)


@app.post("/session")
def session(user: User) -> dict[str, str]:
    """Who the page is for: `publish` lets it cancel, and only the runs of its user."""
    channel = f"private-chat-{user}"
    may = {channel: ["subscribe", "history", "publish"]}
    return {"channel": channel, "token": publisher.token(user, may)}


@app.post("/auth")
def authorize(user: User, channel: Text, socket_id: Text) -> dict[str, str]:
    """Let a connection of the user into the user's own channel."""
    if channel != f"private-chat-{user}":
        raise HTTPException(403)
    return publisher.authorization(channel, socket_id).body


@app.get("/")
def page() -> FileResponse:
    """The chat."""
    return FileResponse(Path(__file__).with_name("page.html"))


if __name__ == "__main__":
    uvicorn.run(app, port=8000)
