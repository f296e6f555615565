"""A prepared request: the outcome of preparing, encoded to travel from a child process to the server."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Self

from gesso.serve.protocol import Constraint

BLOBS = ("checked_by", "images", "attached")  # fields of a prepared request that are bytes


@dataclass(frozen=True, kw_only=True)
class PreparedJob:
    """One answer to generate. The payload is a Submit without its id, ready for the engine."""

    prompt: int  # index of the prompt in the request
    prompt_tokens: int
    max_new_tokens: int
    payload: bytes
    planned: bool = False  # whether a plan runs several engine requests for it


@dataclass(frozen=True, kw_only=True)
class ConstraintSource:
    """A constraint as the JSON of `Guides.compile`'s argument, not yet compiled. The key identifies it."""

    key: str
    model: str
    source: str
    tools: bool  # whether it has tags of tool calls or thoughts
    optional: bool  # whether the model is free to call no tool

    @classmethod
    def of(cls, model: str, constraint: dict[str, Any]) -> Self:
        source = json.dumps(constraint)
        key = hashlib.sha256(f"{model}\0{source}".encode()).hexdigest()
        tagged, optional = "tools" in constraint or "thinking" in constraint, constraint.get("choice") == "auto"
        return cls(key=key, model=model, source=source, tools=tagged, optional=optional)

    @property
    def reference(self) -> Constraint:
        """The constraint in a message to the engine."""
        return Constraint(self.key, self.tools, self.optional)


@dataclass(frozen=True, kw_only=True)
class PreparedRequest:
    """The jobs of a request, and the fields that its answer depends on."""

    served: str  # name of the model whose engine answers
    model: str  # name in the answer, possibly of an adapter
    adapter: str | None
    stream: bool
    user: str | None
    include_usage: bool = False
    continuous_usage: bool = False  # in every chunk of a stream
    logprobs: bool
    one_call: bool = False  # drop every tool call but the first
    warnings: list[str] = field(default_factory=list)
    image_count: int = 0
    echo: dict[str, Any] = field(default_factory=dict)  # fields that the endpoint repeats in its answer
    tools: list[str] = field(default_factory=list)  # names of the tools that the model may call
    jobs: list[PreparedJob]
    constraint: ConstraintSource | None
    # By which a finished answer is checked, as JSON: {"schema": …}, or {"parameters": {tool: schema}, "required": …}
    checked_by: bytes = b""
    images: bytes = b""  # of the prompt, prepared: see `gesso.serve.packed_images`
    attached: bytes = b""  # for the endpoint's answer, which uses it as it is

    def encode(self) -> tuple[bytes, bytes]:
        """Return a JSON head, and a blob of the payloads of the jobs and of the fields that are bytes."""
        jobs = [{**vars(job), "payload": len(job.payload)} for job in self.jobs]
        sizes = {name: len(getattr(self, name)) for name in BLOBS}
        head = json.dumps({**vars(self), "jobs": jobs, **sizes}, default=vars)
        return head.encode(), b"".join([*(job.payload for job in self.jobs), *(getattr(self, name) for name in BLOBS)])

    @classmethod
    def decode(cls, head: bytes, blob: bytes) -> Self:
        fields, start, jobs = json.loads(head), 0, []
        for job in fields.pop("jobs"):
            end = start + job["payload"]
            jobs.append(PreparedJob(**{**job, "payload": blob[start:end]}))
            start = end
        for name in BLOBS:
            end = start + fields[name]
            fields[name] = blob[start:end]
            start = end
        source = fields.pop("constraint")
        return cls(**fields, jobs=jobs, constraint=source and ConstraintSource(**source))
