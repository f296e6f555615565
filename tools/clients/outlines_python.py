"""Outlines over a server with vLLM's fields, with its four kinds of constraints, and as an OpenAI model."""

import json
import re
from typing import Literal

import openai
import outlines
from checks import KEY, MODEL, PERSON, QUESTION, is_introduction, is_person, run
from pydantic import BaseModel, Field

SENTENCE = "Ada Lovelace is 36 years old."


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int


def client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)


def generate(url, kind):
    return outlines.from_vllm(client(url), MODEL)(SENTENCE, kind, max_tokens=64)


def json_schema(url):
    is_person(generate(url, outlines.json_schema(PERSON)))


def typed(url):
    Person.model_validate_json(generate(url, Person))


def choice(url):
    assert generate(url, Literal["blue", "red"]) in ("blue", "red")


def regex(url):
    assert re.fullmatch("[A-Z][a-z]{2,8}, [0-9]{2}", generate(url, outlines.regex("[A-Z][a-z]{2,8}, [0-9]{2}")))


def grammar(url):
    assert generate(url, outlines.cfg('root ::= "yes" | "no"')) in ("yes", "no")


def openai_text(url):
    is_introduction(outlines.from_openai(client(url), MODEL)(QUESTION))


def openai_stream(url):
    is_introduction("".join(outlines.from_openai(client(url), MODEL).stream(QUESTION)))


def openai_json_schema(url):
    is_person(outlines.from_openai(client(url), MODEL)(SENTENCE, outlines.json_schema(PERSON)))


def openai_typed(url):
    person = json.loads(outlines.from_openai(client(url), MODEL)(SENTENCE, Person))
    Person.model_validate(person)


run(
    json_schema, typed, choice, regex, grammar,
    openai_text, openai_stream, openai_json_schema, openai_typed,
)  # fmt: skip
