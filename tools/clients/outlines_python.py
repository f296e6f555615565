"""Outlines over a server with vLLM's fields: its four kinds of constraints."""

import json
import re
from typing import Literal

import openai
import outlines
from checks import KEY, MODEL, PERSON, run
from pydantic import BaseModel, Field


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int


def generate(url, kind):
    model = outlines.from_vllm(openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0), MODEL)
    return model("Ada Lovelace is 36 years old.", kind, max_tokens=64)


def json_schema(url):
    assert isinstance(json.loads(generate(url, outlines.json_schema(PERSON)))["age"], int)


def typed(url):
    Person.model_validate_json(generate(url, Person))


def choice(url):
    assert generate(url, Literal["blue", "red"]) in ("blue", "red")


def regex(url):
    assert re.fullmatch("[A-Z][a-z]{2,8}, [0-9]{2}", generate(url, outlines.regex("[A-Z][a-z]{2,8}, [0-9]{2}")))


def grammar(url):
    assert generate(url, outlines.cfg('root ::= "yes" | "no"')) in ("yes", "no")


run(json_schema, typed, choice, regex, grammar)
