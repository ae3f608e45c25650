"""A chat whose answers are in a channel, with Flask; fastapi_chat.py is the same with FastAPI.

python flask_chat.py, with tidelog at http://127.0.0.1:8080 (`tidelog serve --dev`).
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

from flask import Flask, Response, abort, request, send_file

from tidelog.client import BlockingChannelPublisher

app = Flask(__name__)
app.config["MAX_CONTENT_LENGTH"] = 10_000
publisher = BlockingChannelPublisher("http://127.0.0.1:8080", "app-id", "app-key", "app-secret")


def ask_model(question: str) -> Iterator[str]:
    """Put the client of your model here."""
    for word in f"You asked: {question} The moon pulls the sea.".split():
        yield word + " "
        time.sleep(0.1)


def current_user() -> str:
    """Put your session here: this one takes everybody for ana."""
    return "ana"


def answer(user: str, question: str) -> None:
    """A run for the user, who may stop it from any device: then `write_all` ends."""
    with publisher.run(f"private-chat-{user}", client_id=user) as run:
        run.write_all(ask_model(question))


@app.post("/ask")
def ask() -> tuple[str, int]:
    """Keep the question, and answer it in the channel: no request waits for the answer."""
    user, question = current_user(), str(request.get_json()["question"])
    said = {"ai": {"transport": {"input-client-id": user, "role": "user"}}}
    publisher.publish(f"private-chat-{user}", "ai-input", question, extras=said)
    # Those of Flask's server are daemons, which Ctrl-C would end in the middle of a word.
    threading.Thread(target=answer, args=(user, question), daemon=False).start()
    return "", 202


@app.post("/session")
def session() -> dict[str, str]:
    """Who the page is for: `publish` lets it cancel, and only the runs of its user."""
    user = current_user()
    channel = f"private-chat-{user}"
    may = {channel: ["subscribe", "history", "publish"]}
    return {"channel": channel, "token": publisher.token(user, may)}


@app.post("/auth")
def authorize() -> dict[str, str]:
    """Let a connection of the user into the user's own channel."""
    asked = request.get_json()
    if asked["channel"] != f"private-chat-{current_user()}":
        abort(403)
    return publisher.authorization(asked["channel"], asked["socket_id"]).body


@app.get("/")
def page() -> Response:
    """The chat."""
    return send_file(Path(__file__).with_name("page.html"))


if __name__ == "__main__":
    app.run(port=8000)
