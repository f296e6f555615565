"""The fields of Anthropic's Messages API, and the fields of a chat that they mean."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gesso.chat.image_parts import REFUSED
from gesso.images.budgets import BUDGETS
from gesso.serve.fields import Common, Fields, Ignored, LenientFields, Limit, Stop, example
from gesso.serve.image_parts import base64_part, content_of, image_part
from gesso.serve.openai.chat_fields import ChatFields


def _blocks(block: Any, *kinds: str) -> BeforeValidator:
    """Return a validator that turns text into a block and rejects blocks of other kinds, such as documents.

    The API's description shows the field as a text or a list of `block`.
    """

    def check(value: Any) -> Any:
        if isinstance(value, str):
            return [{"type": "text", "text": value}]
        for index, block in enumerate(value if isinstance(value, list) else ()):
            kind = block.get("type") if isinstance(block, dict) else None
            if isinstance(kind, str) and kind not in kinds and kind in REFUSED:
                raise ValueError(f"block {index}: {REFUSED[kind]}")
            if kind not in kinds:
                raise ValueError(f"block {index} has the type {kind!r:.100}; supported are {', '.join(kinds)}")
        return value

    return BeforeValidator(check, json_schema_input_type=str | list[block])


def _check_tokens(tokens: int) -> int:
    if tokens not in BUDGETS:
        raise ValueError(f"expected one of {', '.join(map(str, BUDGETS))}, got {tokens}")
    return tokens


# A field of an object that has no effect. `MessagesFields.ignored` has the reason.
Warned = Annotated[Any, Field(description="No effect but a warning.")]
Tokens = Annotated[int, AfterValidator(_check_tokens), Field(json_schema_extra={"enum": list(BUDGETS)})]


class TextBlock(LenientFields):
    type: Literal["text"]
    text: str


TextBlocks = Annotated[list[TextBlock], Field(fail_fast=True), _blocks(TextBlock, "text")]


class Base64Source(LenientFields):
    type: Literal["base64"]
    data: str
    media_type: str | None = Field(default=None, description="No effect: the contents decide.")


class UrlSource(LenientFields):
    type: Literal["url"]
    url: str


class ImageBlock(LenientFields):
    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource, Field(discriminator="type")]
    tokens: Tokens | None = Field(default=None, description="Tokens that the image may become.")
    transformations: Warned = None

    def part(self, where: str) -> dict[str, Any]:
        """Return the image as a part of a chat message."""
        if isinstance(self.source, UrlSource):
            return image_part(self.source.url, f"{where}.source.url", self.tokens)
        return base64_part(self.source.data, f"{where}.source.data", self.tokens)


ResultBlock = Annotated[TextBlock | ImageBlock, Field(discriminator="type")]


class ThinkingBlock(LenientFields):
    """A thought of an earlier turn. The model does not see it."""

    type: Literal["thinking", "redacted_thinking"]


class ToolUseBlock(LenientFields):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(LenientFields):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[list[ResultBlock], Field(fail_fast=True), _blocks(ResultBlock, "text", "image")] = []
    is_error: bool = False

    def parts(self, where: str) -> Iterator[dict[str, Any]]:
        """Yield the result as parts of a chat message."""
        if self.is_error:
            yield _text_part("Error: ")
        for index, block in enumerate(self.content):
            place = f"{where}.content[{index}]"
            yield block.part(place) if isinstance(block, ImageBlock) else _text_part(block.text)


Block = Annotated[TextBlock | ImageBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]


class MessageFields(LenientFields):
    role: Literal["user", "assistant", "system"]
    content: Annotated[
        list[Block],
        Field(fail_fast=True),
        _blocks(Block, "text", "image", "thinking", "redacted_thinking", "tool_use", "tool_result"),
    ]

    @property
    def images(self) -> Iterator[ImageBlock]:
        """Yield the images, those in results of tools included."""
        for block in self.content:
            inside = block.content if isinstance(block, ToolResultBlock) else [block]
            yield from (image for image in inside if isinstance(image, ImageBlock))

    def chat_messages(self, where: str) -> Iterator[dict[str, Any]]:
        """Yield the messages of a chat: one per tool result, and one with texts, images and calls."""
        results, parts, calls = [], list[dict[str, Any]](), []
        for index, block in enumerate(self.content):
            place = f"{where}.content[{index}]"
            match block:
                case TextBlock():
                    parts.append(_text_part(block.text))
                case ImageBlock():
                    parts.append(block.part(place))
                case ToolUseBlock():
                    function = {"name": block.name, "arguments": block.input}
                    calls.append({"id": block.id, "type": "function", "function": function})
                case ToolResultBlock():
                    content = content_of(block.parts(place))
                    results.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": content})
        yield from results
        if parts or calls or not results:
            yield {"role": self.role, "content": content_of(parts), "tool_calls": calls}


class ToolFields(LenientFields):
    type: Literal["custom"] = "custom"
    name: str
    description: str = ""
    input_schema: dict[str, Any]
    input_examples: Warned = None
    defer_loading: Warned = None
    allowed_callers: Warned = None

    @property
    def ignored(self) -> dict[str, str]:
        """The fields that have no effect, with the reason."""
        return _given(
            {
                "tools.input_examples": (self.input_examples, "write examples into the description"),
                "tools.defer_loading": (self.defer_loading, "the model sees every tool from the start"),
                "tools.allowed_callers": (
                    self.allowed_callers not in (None, ["direct"]),
                    "every call is returned to the client",
                ),
            }
        )

    def chat_tool(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": function}


class ToolChoiceFields(Fields):
    type: Literal["auto", "any", "tool", "none"] = "auto"
    name: str | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("give name if and only if type is tool")
        return self

    def chat_choice(self) -> str | dict[str, Any]:
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name}}
        return "required" if self.type == "any" else self.type


class ThinkingFields(LenientFields):
    """Whether to think before the answer: with `enabled` and `adaptive`."""

    type: Literal["enabled", "adaptive", "disabled"] = "disabled"
    budget_tokens: Warned = None
    display: Warned = None


class OutputFormat(LenientFields):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputFields(LenientFields):
    format: OutputFormat | None = Field(default=None, description="A JSON schema for the answer.")
    effort: Warned = None
    task_budget: Warned = None


class MessagesFields(Common):
    model_config = example({"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 64})

    messages: Annotated[list[MessageFields], Field(fail_fast=True, json_schema_extra={"minItems": 1})]
    system: TextBlocks = []
    max_tokens: Limit = None
    stop_sequences: Stop = []
    tools: Annotated[list[ToolFields], Field(fail_fast=True)] = []
    tool_choice: ToolChoiceFields = ToolChoiceFields()
    thinking: ThinkingFields = ThinkingFields()
    output_config: OutputFields = OutputFields()
    thread: Any = Field(default=None, description="Rejected by a code on which clients send the whole conversation.")
    metadata: Ignored = None
    service_tier: Ignored = None
    cache_control: Ignored = None
    context_management: Warned = None

    @property
    def ignored(self) -> dict[str, str]:
        images = [image for message in self.messages for image in message.images]
        ignored = _given(
            {
                "thinking.budget_tokens": (self.thinking.budget_tokens, "thoughts have no limit but max_tokens"),
                "thinking.display": (self.thinking.display == "omitted", "thoughts are part of the answer"),
                "output_config.effort": (self.output_config.effort, "thinking.type turns thinking on or off"),
                "output_config.task_budget": (self.output_config.task_budget, "max_tokens is the only limit"),
                "context_management": (self.context_management, "send the messages that the answer needs"),
                "messages.content.transformations": (
                    any(image.transformations for image in images),
                    "an image is always scaled to its tokens",
                ),
            }
        )
        for tool in self.tools:
            ignored |= tool.ignored
        return ignored

    def to_chat(self) -> ChatFields:
        system = [{"role": "system", "content": _text(self.system)}] if self.system else []
        messages = [
            each for index, message in enumerate(self.messages) for each in message.chat_messages(f"messages[{index}]")
        ]
        chat = {name: getattr(self, name) for name in (*Common.model_fields, "max_tokens")}
        chat |= {
            "messages": [*system, *messages],
            "stop": self.stop_sequences,
            "tools": [tool.chat_tool() for tool in self.tools],
            "tool_choice": self.tool_choice.chat_choice(),
            "thinking": self.thinking.type != "disabled",
        }
        if messages and messages[-1]["role"] == "assistant" and not messages[-1]["tool_calls"]:
            chat["continue_final_message"] = True  # clients put the message before the answer
        if self.tool_choice.disable_parallel_tool_use:
            chat["parallel_tool_calls"] = False
        if (output := self.output_config.format) is not None:
            chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": output.schema_}}
        return ChatFields.model_validate(chat)


def _given(reasons: dict[str, tuple[Any, str]]) -> dict[str, str]:
    """Return the reasons of the names whose value is given."""
    return {name: reason for name, (value, reason) in reasons.items() if value}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _text(blocks: Sequence[TextBlock]) -> str:
    return "".join(block.text for block in blocks)
