"""Requests with images to every API of a server, with the same settings."""

import base64
from collections.abc import Callable
from typing import Any

from tests.images.files import drawing, encoded
from tests.serving import QUICK

SEED, LENGTH = 3, 16
CHAT = "/v1/chat/completions"
CAT, DOG = encoded(drawing(60, 40), "PNG"), encoded(drawing(40, 70, seed=5), "JPEG")


def packed(file: bytes) -> str:
    return base64.b64encode(file).decode()


def url(file: bytes) -> str:
    return f"data:image/png;base64,{packed(file)}"


def part(file: bytes, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(file)}, **more}


def chat(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **common(), "max_tokens": LENGTH, **more}


def common() -> dict[str, Any]:
    return {"seed": SEED, "diffusion": QUICK}


def ask(server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = server.http.post(path, json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def by_chat(server, files, text="What?"):
    answer = ask(server, CHAT, chat([*map(part, files), {"type": "text", "text": text}]))
    return answer["choices"][0]["message"]["content"]


def by_responses(server, files, text="What?"):
    images = [{"type": "input_image", "image_url": url(file), "detail": "auto"} for file in files]
    items = [{"role": "user", "content": [*images, {"type": "input_text", "text": text}]}]
    return text_of(ask(server, "/v1/responses", {"input": items, **common(), "max_output_tokens": LENGTH}))


def text_of(response):
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def by_anthropic(server, files, text="What?"):
    sources = [{"type": "base64", "media_type": "image/webp", "data": packed(file)} for file in files]
    content = [*({"type": "image", "source": source} for source in sources), {"type": "text", "text": text}]
    body = {"model": "tiny", "messages": [{"role": "user", "content": content}], **common(), "max_tokens": LENGTH}
    return "".join(block["text"] for block in ask(server, "/v1/messages", body)["content"])


def ollama() -> dict[str, Any]:
    return {"model": "tiny", "stream": False, "options": {**common(), "num_predict": LENGTH}}


def by_ollama_chat(server, files, text="What?"):
    message = {"role": "user", "content": text, "images": [packed(file) for file in files]}
    return ask(server, "/api/chat", {"messages": [message], **ollama()})["message"]["content"]


def by_ollama_generate(server, files, text="What?"):
    return ask(server, "/api/generate", {"prompt": text, "images": list(map(packed, files)), **ollama()})["response"]


APIS: dict[str, Callable[..., str]] = {
    "chat": by_chat,
    "responses": by_responses,
    "anthropic": by_anthropic,
    "ollama chat": by_ollama_chat,
    "ollama generate": by_ollama_generate,
}
