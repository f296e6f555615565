"""The fields of requests to /v1/responses."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from gesso.constraints.spec import ConstraintSpec
from gesso.errors import InputError
from gesso.serve.described import ResponseInput, ResponseTools
from gesso.serve.fields import Common, Count, Fields, Limit, SchemaOptionFields, Texts, example, with_options
from gesso.serve.leniency import UNSUPPORTED
from gesso.serve.openai.chat_fields import SCHEMA_IN_PROMPT, Effort, SchemaFields, thinks

Name = Annotated[str, Field(max_length=512)]
FUNCTION_FIELDS = ("type", "name", "description", "parameters", "strict")
FUNCTION_DEFAULTS = {"allowed_callers": ["direct"]}  # of other fields, whose defaults change nothing
LOGPROBS = "message.output_text.logprobs"


class ReasoningFields(Fields):
    """Whether to think. The whole thought is the summary, whichever summary is requested."""

    effort: Effort | None = None
    summary: Name | None = None
    generate_summary: Name | None = Field(default=None, description="The older name of `summary`.")
    context: Name | None = Field(default=None, description="No effect: thoughts of earlier turns are dropped.")
    mode: Name | None = Field(default=None, description="No effect.")


class ResponseFormat(SchemaFields):
    """Like `FormatFields`, with the fields of the schema beside its type."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")  # type: ignore[assignment]

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise ValueError("give schema if and only if type is json_schema")
        return self

    @property
    def requested_schema(self) -> dict[str, Any] | bool | None:
        return {"type": "object"} if self.type == "json_object" else self.schema_


class TextFields(Fields):
    format: ResponseFormat = ResponseFormat()
    verbosity: Name = Field(default="medium", description="Another value gives a warning.")


class NamedTool(Fields):
    type: Literal["function"]
    name: Name


def _kind_of_choice(value: Any) -> str:
    """Return which of the two types was meant, so that errors refer to that one."""
    return "object" if isinstance(value, (dict, NamedTool)) else "word"


ToolChoice = Annotated[
    Annotated[Literal["auto", "none", "required"], Tag("word")] | Annotated[NamedTool, Tag("object")],
    Discriminator(_kind_of_choice),
]


class ResponseStreamOptions(Fields):
    include_obfuscation: bool = Field(default=False, description="No effect: events have no padding.")


class ResponseFields(Common):
    model_config = example(
        {"input": "Who are you?", "max_output_tokens": 64},
        anyOf=[{"required": ["input"]}, {"required": ["previous_response_id"]}],
    )

    input: ResponseInput = Field(
        default=[],
        description="A text, or items: messages, function calls, their outputs. Parts of type input_image hold images.",
    )
    instructions: str | None = Field(default=None, description="The system message. It is not carried over.")
    previous_response_id: Name | None = Field(default=None, description="A stored response to continue.")
    store: bool = Field(default=True, description="Keep the response in the server's memory for a while.")
    max_output_tokens: Limit = None
    reasoning: ReasoningFields = ReasoningFields()
    text: TextFields = TextFields()
    tools: ResponseTools = Field(default=[], description="Functions. Other types of tools are ignored with a warning.")
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = Field(default=True, description="If false, at most one call is returned.")
    metadata: Annotated[
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
    ] = Field(default={}, description="Returned with the response.")
    include: Texts = Field(default=[], description="No effect; `message.output_text.logprobs` gives a warning.")
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = Field(default=0, description="No effect above 0 but a warning.")
    schema_in_prompt: bool = SCHEMA_IN_PROMPT
    schema_options: SchemaOptionFields | None = Field(default=None, description="With a JSON schema as the format.")
    truncation: Literal["auto", "disabled"] = Field(
        default="disabled", description="`auto` gives a warning: a conversation that does not fit is rejected."
    )
    max_tool_calls: Count | None = Field(default=None, description="No effect: it limits tools that OpenAI runs.")
    service_tier: Name | None = Field(default=None, description="No effect.")
    prompt_cache_key: Name | None = Field(default=None, description="No effect: the prefix cache needs no key.")
    prompt_cache_options: dict[str, Any] = Field(default={}, description="No effect.")
    prompt_cache_retention: Name | None = Field(default=None, description="No effect.")
    safety_identifier: Name | None = Field(default=None, description="No effect.")
    client_metadata: dict[str, Any] = Field(default={}, description="No effect.")
    stream_options: ResponseStreamOptions = ResponseStreamOptions()

    @property
    def functions(self) -> list[dict[str, Any]]:
        """The tools that are functions, with the fields that have a meaning."""
        functions = [tool for tool in self.tools if tool.get("type") == "function"]
        return [{name: tool[name] for name in FUNCTION_FIELDS if name in tool} for tool in functions]

    @property
    def ignored(self) -> dict[str, str]:
        ignored: dict[str, str] = {}
        if LOGPROBS in self.include:
            ignored["include"] = f"only /v1/chat/completions has {LOGPROBS}"
        if self.top_logprobs:
            ignored["top_logprobs"] = "only /v1/chat/completions has log-probabilities"
        if self.truncation == "auto":
            ignored["truncation"] = "a conversation that does not fit is rejected, so shorten it"
        if self.text.verbosity != "medium":
            ignored["text.verbosity"] = UNSUPPORTED
        for tool in self.tools:
            if tool.get("type") != "function":
                ignored[f"tools.{tool.get('type')}"] = "only functions are supported"
                continue
            for name in tool.keys() - set(FUNCTION_FIELDS):
                if tool[name] and tool[name] != FUNCTION_DEFAULTS.get(name):
                    ignored[f"tools.{name}"] = UNSUPPORTED
        return ignored

    def constraint(self) -> ConstraintSpec | None:
        """Return the constraint on the text. That on tool calls follows from the tools."""
        schema = self.text.format.requested_schema
        if schema is not None and self.tool_choice not in ("auto", "none"):
            raise InputError("text.format and tool_choice were given; only one constraint is allowed")
        return with_options(None if schema is None else ConstraintSpec(json_schema=schema), self.schema_options)

    @property
    def chosen_tool(self) -> str | dict[str, Any]:
        if isinstance(self.tool_choice, NamedTool):
            return {"type": "function", "function": {"name": self.tool_choice.name}}
        return self.tool_choice

    @property
    def thinks(self) -> bool:
        return thinks(self.reasoning.effort)

    @property
    def echo(self) -> dict[str, Any]:
        """The fields that a response repeats."""
        return {
            "instructions": self.instructions,
            "previous_response_id": self.previous_response_id,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "reasoning": {
                "effort": self.reasoning.effort,
                "summary": self.reasoning.summary or self.reasoning.generate_summary,
            },
            "text": self.text.model_dump(exclude_none=True, by_alias=True),
            # `strict` even if it was not sent: parameters are always enforced
            "tools": [{"description": None, "parameters": None, "strict": True, **tool} for tool in self.functions],
            "tool_choice": self.tool_choice if isinstance(self.tool_choice, str) else self.tool_choice.model_dump(),
            "parallel_tool_calls": self.parallel_tool_calls,
            "metadata": self.metadata,
            "temperature": self.temperature,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "top_logprobs": 0,
            "truncation": "disabled",
            "background": False,
            "service_tier": "default",
            "prompt_cache_key": self.prompt_cache_key,
            "safety_identifier": self.safety_identifier,
            "user": self.user,
        }


class ItemsQuery(Fields):
    """The query of /v1/responses/{id}/input_items."""

    limit: Annotated[int, Field(ge=1, le=100, strict=False)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None
    include: Any = None
