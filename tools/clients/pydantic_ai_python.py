"""pydantic-ai: plain and typed answers over chat completions, responses and Anthropic's messages."""

from checks import KEY, MODEL, QUESTION, is_text, run
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int


def provider(url):
    return OpenAIProvider(base_url=f"{url}/v1", api_key=KEY)


def chat(url):
    is_text(Agent(OpenAIChatModel(MODEL, provider=provider(url))).run_sync(QUESTION).output)


def typed(url):
    agent = Agent(OpenAIChatModel(MODEL, provider=provider(url)), output_type=Person)
    assert isinstance(agent.run_sync("Ada Lovelace is 36 years old.").output, Person)


def native(url):
    agent = Agent(OpenAIChatModel(MODEL, provider=provider(url)), output_type=NativeOutput(Person))
    assert isinstance(agent.run_sync("Ada Lovelace is 36 years old.").output, Person)


def responses(url):
    is_text(Agent(OpenAIResponsesModel(MODEL, provider=provider(url))).run_sync(QUESTION).output)


def anthropic(url):
    model = AnthropicModel(MODEL, provider=AnthropicProvider(base_url=url, api_key=KEY))
    is_text(Agent(model).run_sync(QUESTION).output)


run(chat, typed, native, responses, anthropic)
