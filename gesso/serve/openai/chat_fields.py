"""The fields of `/v1/chat/completions`, and the constraint of a chat."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from gesso.constraints.spec import ConstraintSpec
from gesso.errors import InputError
from gesso.serve.described import ChatFunctions, ChatMessages, ChatTools
from gesso.serve.fields import Choices, Fields, Limit, SchemaOptionFields, example, with_options

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
SCHEMA_IN_PROMPT = Field(default=True, description="Add the JSON schema of the answer to the last message.")


class SchemaFields(Fields):
    """A JSON schema for the answer. It is always enforced; `strict` changes nothing."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool = Field(default={"type": "object"}, alias="schema")
    strict: bool | None = None


class FormatFields(Fields):
    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: SchemaFields | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("give json_schema if and only if type is json_schema")
        return self

    @property
    def requested_schema(self) -> dict[str, Any] | bool | None:
        if self.json_schema is not None:
            return self.json_schema.schema_
        return {"type": "object"} if self.type == "json_object" else None


class ChosenFunction(Fields):
    name: str


class ChosenTool(Fields):
    type: Literal["function"] = "function"
    function: ChosenFunction


class ChatFields(Choices):
    model_config = example({"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 64})

    messages: ChatMessages = Field(
        description="A content is text, or a list of parts: text, and image_url if the model sees images."
    )
    max_completion_tokens: Limit = Field(default=None, description="Like max_tokens; the smaller one counts.")
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: ChatTools | None = None
    tool_choice: Literal["auto", "none", "required"] | ChosenTool = "auto"
    functions: ChatFunctions | None = Field(
        default=None, description="The former name of tools. An answer with a call then has function_call."
    )
    function_call: Literal["auto", "none"] | ChosenFunction | None = Field(
        default=None, description="The former name of tool_choice."
    )
    parallel_tool_calls: bool | None = Field(default=None, description="With false, an answer has at most one call.")
    response_format: FormatFields = FormatFields()
    continue_final_message: bool = Field(
        default=False, description="Continue the last message, a text of the assistant. The answer is what follows it."
    )
    reasoning_effort: Effort | None = None
    thinking: bool | None = Field(default=None, description="Think before the answer, like any effort above minimal.")
    schema_in_prompt: bool = SCHEMA_IN_PROMPT
    schema_options: SchemaOptionFields | None = Field(default=None, description="With a JSON schema as the format.")

    @model_validator(mode="after")
    def _translate_functions(self) -> Self:
        """Turn functions into tools, and the messages about their calls into those about calls of tools."""
        self.messages = [_with_refusal(_without_function_calls(message)) for message in self.messages]
        if not self.functions:
            if isinstance(self.function_call, ChosenFunction):
                raise ValueError("function_call names a function; give it in functions")
            return self
        if self.tools is not None:
            raise ValueError("functions and tools were given; leave functions out, their former name")
        self.tools = [{"type": "function", "function": function} for function in self.functions]
        self.parallel_tool_calls = False  # an answer has room for one function_call
        if isinstance(self.function_call, ChosenFunction):
            self.tool_choice = ChosenTool(function=self.function_call)
        elif self.function_call is not None:
            self.tool_choice = self.function_call
        return self

    @model_validator(mode="after")
    def _check_continued(self) -> Self:
        if not self.continue_final_message:
            return self
        last = self.messages[-1] if self.messages else {}
        if last.get("role") != "assistant" or not isinstance(last.get("content"), str) or last.get("tool_calls"):
            raise ValueError("continue_final_message needs a last message of the assistant with a text and no calls")
        if self.thinks or self.constraint_with() or self.response_format.type != "text":
            raise ValueError("a last message of the assistant is continued: leave thinking and the constraint out")
        return self

    @property
    def ignored(self) -> dict[str, str]:
        ignored: dict[str, str] = {}
        if self.top_logprobs and not self.logprobs:
            ignored["top_logprobs"] = "it needs logprobs: true"
        if any(message.get("name") and message.get("role") != "tool" for message in self.messages):
            ignored["messages.name"] = "the chat template names roles only; write the name into the content"
        if any(message.get("audio") for message in self.messages):
            ignored["messages.audio"] = "this server keeps no audio; send its transcript as content"
        return ignored

    @property
    def most_tokens(self) -> int | None:
        """The smaller of the two names for the same limit."""
        given = [limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None]
        return min(given, default=None)

    def constraint(self) -> ConstraintSpec | None:
        """Return the constraint on the text. That on tool calls follows from the tools."""
        constraint = self.constraint_with(self.response_format.requested_schema)
        if constraint and self.tool_choice not in ("auto", "none"):
            name = next(iter(constraint.given))
            raise InputError(f"{name} and tool_choice were given; only one constraint is allowed")
        return with_options(constraint, self.schema_options)

    @property
    def chosen_tool(self) -> str | dict[str, Any]:
        return self.tool_choice if isinstance(self.tool_choice, str) else self.tool_choice.model_dump()

    @property
    def shown_tools(self) -> list[dict[str, Any]] | None:
        """The tools that the model is shown."""
        return None if self.tool_choice == "none" else self.tools

    @property
    def thinks(self) -> bool:
        return thinks(self.reasoning_effort) if self.thinking is None else self.thinking


def thinks(effort: str | None) -> bool:
    return effort not in (None, "none", "minimal")


def _without_function_calls(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message in which function_call is a call of a tool, and a function's result that of a tool."""
    if message.get("role") == "function":
        return {**message, "role": "tool"}
    if not isinstance(call := message.get("function_call"), dict):
        return message
    rest = {name: value for name, value in message.items() if name != "function_call"}
    return {**rest, "tool_calls": [{"type": "function", "function": call}]}


def _with_refusal(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message in which the text of a refusal, which has a field of its own, is the content."""
    content = message.get("content")
    if not content and message.get("refusal"):
        return {**message, "content": message["refusal"]}
    if not isinstance(content, list):
        return message
    return {**message, "content": [_without_refusal_type(part) for part in content]}


def _without_refusal_type(part: Any) -> Any:
    if not isinstance(part, dict) or part.get("type") != "refusal":
        return part
    return {"type": "text", "text": part.get("refusal")}
