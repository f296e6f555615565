"""instructor: typed objects from chat completions."""

import instructor
import openai
from checks import KEY, MODEL, run
from pydantic import BaseModel, Field


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int


def ask(url, mode):
    client = instructor.from_openai(openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0), mode=mode)
    messages = [{"role": "user", "content": "Ada Lovelace is 36 years old."}]
    person = client.chat.completions.create(model=MODEL, response_model=Person, messages=messages, max_retries=0)
    assert isinstance(person, Person)


def tools(url):
    ask(url, instructor.Mode.TOOLS)


def json_schema(url):
    ask(url, instructor.Mode.JSON_SCHEMA)


run(tools, json_schema)
