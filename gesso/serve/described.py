"""The objects of a conversation as the API's description shows them.

No request is parsed with these classes: `gesso.chat.messages` and `gesso.serve.prepare.response_items` check the
objects, and accept more than one form of some. They are the forms that OpenAI documents.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gesso.serve.fields import LenientFields, Objects

FUNCTION_NAME = "^[A-Za-z0-9_.:/-]{1,128}$"


def described_as(type_: Any) -> BeforeValidator:
    """Return a validator that changes nothing, and shows a field with this type in the API's description."""
    return BeforeValidator(_unchanged, json_schema_input_type=type_)


def _unchanged(value: Any) -> Any:
    return value


class TextPartFields(LenientFields):
    type: Literal["text"]
    text: str


class ImageUrlFields(LenientFields):
    url: str = Field(description="A data URL, or an http(s) URL if the server fetches images.")


class ImagePartFields(LenientFields):
    type: Literal["image_url"]
    image_url: ImageUrlFields


class CalledFunctionFields(LenientFields):
    name: Annotated[str, Field(pattern=FUNCTION_NAME)]
    arguments: dict[str, Any] | str = Field(default="{}", description="An object, or its JSON.")


class ToolCallFields(LenientFields):
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunctionFields


class UserMessageFields(LenientFields):
    role: Literal["system", "developer", "user"]
    content: str | list[TextPartFields | ImagePartFields]


class AssistantMessageFields(LenientFields):
    role: Literal["assistant"]
    content: str | None = None
    tool_calls: list[ToolCallFields] = []


class ToolMessageFields(LenientFields):
    """The result of a call."""

    role: Literal["tool"]
    content: str | list[TextPartFields | ImagePartFields]
    tool_call_id: str = Field(description="The id of an earlier call.")


class FunctionFields(LenientFields):
    name: Annotated[str, Field(pattern=FUNCTION_NAME)]
    description: str = ""
    parameters: dict[str, Any] = Field(
        default={"type": "object", "properties": {}},
        description="The JSON schema of the arguments.",
        json_schema_extra={"properties": {"type": {"const": "object"}}, "required": ["type"]},
    )


class ChatToolFields(LenientFields):
    type: Literal["function"] = "function"
    function: FunctionFields


class InputTextFields(LenientFields):
    type: Literal["input_text", "output_text"]
    text: str


class InputImageFields(LenientFields):
    type: Literal["input_image"]
    image_url: str = Field(description="A data URL, or an http(s) URL if the server fetches images.")
    detail: Literal["low", "high", "auto"] = "auto"


class InputMessageFields(LenientFields):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputTextFields | InputImageFields]


class FunctionCallFields(LenientFields):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str = Field(description="An object as JSON.")


class FunctionCallOutputFields(LenientFields):
    type: Literal["function_call_output"]
    call_id: str
    output: str | list[InputTextFields | InputImageFields]


class ItemReferenceFields(LenientFields):
    type: Literal["item_reference"] = "item_reference"
    id: str = Field(description="Of an output item of a stored response.")


class ResponseToolFields(FunctionFields):
    type: Literal["function"]


ChatMessage = UserMessageFields | AssistantMessageFields | ToolMessageFields
ChatMessages = Annotated[Objects, described_as(Annotated[list[ChatMessage], Field(min_length=1)])]
ChatTools = Annotated[Objects, described_as(list[ChatToolFields])]
ChatFunctions = Annotated[Objects, described_as(list[FunctionFields])]
InputItem = InputMessageFields | FunctionCallFields | FunctionCallOutputFields | ItemReferenceFields
ResponseInput = Annotated[str | Objects, described_as(str | Annotated[list[InputItem], Field(min_length=1)])]
ResponseTools = Annotated[Objects, described_as(list[ResponseToolFields])]
