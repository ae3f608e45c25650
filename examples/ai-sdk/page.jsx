import { useChat } from "@ai-sdk/react";
import { useState } from "react";
import { createRoot } from "react-dom/client";
import { Tidelog } from "http://127.0.0.1:8080/tidelog.js";
import { TidelogTransport } from "./transport.js";

const token = async () => (await fetch("/token", { method: "POST" })).json();
const transport = new TidelogTransport(new Tidelog({ key: "app-key", token }));
const id = "chat";

function Chat({ earlier }) {
  const { messages, sendMessage, status, stop } = useChat({ id, transport, messages: earlier, resume: true });
  const [input, setInput] = useState("");
  const ask = (event) => {
    event.preventDefault();
    sendMessage({ text: input });
    setInput("");
  };
  return (
    <main>
      {messages.map((message) => (
        <p key={message.id} className={message.role}>
          {message.parts.map((part, index) => (part.type === "text" ? <span key={index}>{part.text}</span> : null))}
        </p>
      ))}
      <form onSubmit={ask}>
        <input value={input} onChange={(event) => setInput(event.target.value)} placeholder="Ask" />
        <button disabled={status !== "ready"}>Ask</button>
        <button type="button" onClick={stop} disabled={status !== "streaming"}>Stop</button>
      </form>
    </main>
  );
}

const earlier = await transport.history(id);
createRoot(document.querySelector("#chat")).render(<Chat earlier={earlier} />);
