"""`gesso chat`: a conversation in the terminal or over a pipe."""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gesso import renamed
from gesso.bundled import BASE, DEMOS
from gesso.cli.delivery import deliver
from gesso.cli.images import IMAGE_TOKENS, Images, ImageTokens, content, open_pictures, prepared
from gesso.cli.options import (
    Decode,
    GenerationOptions,
    Json,
    Live,
    LoadOptions,
    ModelArgument,
    read_json,
    with_options,
)
from gesso.cli.terminal import complain, follow, lines, note
from gesso.cli.windows import reject_windows
from gesso.errors import ConstraintError, InputError

if TYPE_CHECKING:
    from gesso.api import Gesso
    from gesso.images.image import Image

HELP = """\
/image FILE  show a picture with the next message
/reset       forget the conversation, keep the system message
/retry       answer the last question again, with the next seed
/seed N      use this seed for the next answers
/exit        leave, as Ctrl-D does
If a message begins with a slash, put a space before it. A pasted text is one message. The arrow keys edit it and recall
earlier ones. Ctrl-C stops an answer; at the prompt, it clears the line, and a second one ends the chat."""
SEEDS = 2**64


@with_options
def chat(
    model_argument: ModelArgument = None,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="Answer this message only, then leave.")] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    thinking: Annotated[bool, typer.Option("--thinking/--no-thinking", help="Think before the answer.")] = False,
    schema_in_prompt: Annotated[
        bool,
        typer.Option(
            "--schema-in-prompt/--no-schema-in-prompt",
            help="Show the model the schema.",
            rich_help_panel="Constraints",
        ),
    ] = True,
    tools: Annotated[
        Path | None, typer.Option(help="JSON file with a list of tools in OpenAI's format. Calls are printed as JSON.")
    ] = None,
    image: Images = None,
    image_tokens: ImageTokens = IMAGE_TOKENS,
    live: Live = True,
    json: Json = False,
    decode: Decode = None,
    *,
    loading: LoadOptions,
    options: GenerationOptions,
) -> None:
    """Chat with the model. With piped stdin, every line is a message."""
    reject_windows("gesso chat")
    interactive = sys.stdin.isatty() and prompt is None
    if prompt is not None and not prompt.strip():
        raise InputError("--prompt is empty; give a message to answer")
    pictures = open_pictures(image or ())
    keywords = renamed.translated({**options.keywords(), "decode": decode})
    keywords |= {"thinking": thinking, "schema_in_prompt": schema_in_prompt}
    if tools is not None:
        keywords["tools"] = read_json(tools)
    model = replace(loading, model=model_argument or loading.model).load(max_batch=1, write=keywords.get("write"))
    images = prepared(model, pictures, image_tokens)
    conversation = Conversation(model, keywords, system, images, image_tokens, live=live, json=json)
    if prompt is not None:
        conversation.ask(content(images, prompt), conversation.messages)
        return
    if interactive:
        note(introduction(model_argument or loading.model or BASE))
    for line in lines(interactive):
        if line.split() == ["/exit"]:
            return
        try:
            conversation.handle(line)
        except KeyboardInterrupt:
            if not interactive:
                raise
            note("stopped; the question is not part of the conversation")
        except (InputError, ConstraintError) as error:
            if not interactive:
                raise
            complain(str(error))


def introduction(name: str) -> str:
    """Return the first line of a chat: the model, what it is for if it is bundled, and how to go on."""
    model = f"{name}, {DEMOS[name]}" if name in DEMOS else name
    return f"This is {model}. /help lists the commands, Ctrl-D ends the chat."


@dataclass
class Conversation:
    """The messages so far, and the options and seed of the next answer."""

    model: "Gesso"
    options: Mapping[str, Any]  # keyword arguments of `Gesso.chat_request`
    system: str | None
    images: "list[Image]" = field(default_factory=list)  # shown with the next question
    image_tokens: int = IMAGE_TOKENS
    live: bool = False
    json: bool = False
    messages: list[dict[str, Any]] = field(default_factory=list)
    question: str | list[dict[str, Any]] | None = None  # content of the last question, answered or not
    before: list[dict[str, Any]] = field(default_factory=list)  # the messages before that question
    last_seed: int | None = None  # of the answer to that question

    def __post_init__(self) -> None:
        self.seed = self.options.get("seed")
        self.reset()

    def handle(self, line: str) -> None:
        """Carry out a command, or answer a message."""
        match line.split() if line.startswith("/") else ["", line.strip()]:
            case ["", question]:
                if question:
                    self.ask(content(self.images, question), self.messages)
            case ["/help"]:
                note(HELP)
            case ["/image", _, *_]:
                self.show(line.strip().removeprefix("/image"))
            case ["/reset"]:
                self.reset()
                self.images = []
            case ["/seed", number] if number.isdecimal() and int(number) < SEEDS:
                self.seed = int(number)
            case ["/retry"]:
                self.retry()
            case _:
                complain(f"no such command: {line.strip()}; /help lists the commands")

    def show(self, files: str) -> None:
        """Show pictures with the next question. Names with spaces are quoted or escaped, as terminals paste them."""
        try:
            names = shlex.split(files)
        except ValueError as error:
            raise InputError(f"/image: {error}; put the name of the file in quotes") from None
        images = prepared(self.model, open_pictures([Path(name) for name in names]), self.image_tokens)
        self.images += images
        note(f"the next message shows {' and '.join(names)} ({sum(image.tokens for image in images)} tokens)")

    def ask(self, question: str | list[dict[str, Any]], before: list[dict[str, Any]]) -> None:
        self.question = question
        self.before = before
        self.last_seed = None
        conversation = [*before, {"role": "user", "content": question}]
        request = self.model.chat_request(conversation, **{**self.options, "seed": self.seed})
        events = self.model.events(request, retry=True)  # only the end is printed
        result = follow(self.model, events, self.live and not self.json)
        answer = self.model.read_answer(result, self.options.get("tools"))
        calls = [asdict(call) for call in answer.tool_calls]
        # Only now: if the answer is stopped, the question must not stay in the conversation.
        self.messages = [*conversation, {"role": "assistant", "content": answer.text}]
        shown = [part.get("image") for part in question] if isinstance(question, list) else []
        self.images = [image for image in self.images if image not in shown]  # others belong to the next question
        if calls:
            self.messages[-1]["tool_calls"] = [{"type": "function", "function": call} for call in calls]
        self.last_seed = result.seed
        text = "\n".join(filter(None, [answer.text, *(dumps(call, ensure_ascii=False) for call in calls)]))
        deliver(replace(result, text=text), as_json=self.json, answer=answer, writing=self.model.writing)
        if answer.malformed and not self.json:
            note("the model wrote a tool call that cannot be read; /retry answers again, or give the tool with --tools")
        elif not text.strip() and not self.json:
            note("the answer has no text; /retry answers again, with the next seed")

    def retry(self) -> None:
        if self.question is None:
            complain("nothing to retry; ask a question first")
            return
        if self.seed is not None and self.seed == self.last_seed:
            self.seed = (self.seed + 1) % SEEDS  # the same seed would give the same answer
        self.ask(self.question, self.before)

    def reset(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []
        self.question = None
