"""A prepared request: the outcome of preparing, encoded to travel from a child process to the server."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Self


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
    """A constraint as a regular expression, not yet compiled. The key identifies it."""

    key: str
    model: str
    regex: str
    tools: bool
    pinned: bool

    @classmethod
    def of(cls, model: str, regex: str, *, tools: bool, pinned: bool) -> Self:
        content = f"{model}\0{tools}\0{pinned}\0{regex}"
        key = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
        return cls(key=key, model=model, regex=regex, tools=tools, pinned=pinned)


@dataclass(frozen=True, kw_only=True)
class PreparedRequest:
    """The jobs of a request, and the fields that its answer depends on."""

    served: str  # name of the model whose engine answers
    model: str  # name in the answer, possibly of an adapter
    adapter: str | None
    stream: bool
    user: str | None
    include_usage: bool
    logprobs: bool
    echo: dict[str, Any] = field(default_factory=dict)  # fields that the endpoint repeats in its answer
    tools: list[str] = field(default_factory=list)  # names of the tools that the model may call
    jobs: list[PreparedJob]
    constraint: ConstraintSource | None

    def encode(self) -> tuple[bytes, bytes]:
        """Return a JSON head and the concatenated payloads of the jobs."""
        jobs = [{**vars(job), "payload": len(job.payload)} for job in self.jobs]
        head = json.dumps({**vars(self), "jobs": jobs}, default=vars)
        return head.encode(), b"".join(job.payload for job in self.jobs)

    @classmethod
    def decode(cls, head: bytes, payloads: bytes) -> Self:
        fields, start, jobs = json.loads(head), 0, []
        for job in fields.pop("jobs"):
            end = start + job["payload"]
            jobs.append(PreparedJob(**{**job, "payload": payloads[start:end]}))
            start = end
        source = fields.pop("constraint")
        return cls(**fields, jobs=jobs, constraint=source and ConstraintSource(**source))
