"""A request that was read and checked, as the process that read it hands it to the event loop."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from gesso.serve.protocol import Constraint


@dataclass(frozen=True, kw_only=True)
class PreparedJob:
    """One answer to be written. The payload is a Submit without its id, ready for the engine."""

    prompt: int  # which of the request's prompts
    prompt_tokens: int
    max_new_tokens: int
    payload: bytes
    planned: bool = False  # it takes several requests to the engine


@dataclass(frozen=True, kw_only=True)
class Source:
    """A constraint as a regular expression, still to be compiled."""

    regex: str
    tools: bool
    pinned: bool

    def constraint(self, model: str) -> Constraint:
        content = f"{model}\0{self.tools}\0{self.pinned}\0{self.regex}"
        return Constraint(hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest(), self.tools)


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """A checked request: its jobs, and the fields that its answer depends on."""

    served: str  # the model whose engine answers
    model: str  # the name in the answer
    adapter: str | None
    stream: bool
    drafts: bool
    user: str | None
    include_usage: bool = False
    logprobs: bool = False
    echo: dict[str, Any] = field(default_factory=dict)  # fields that only one endpoint repeats in its answer
    jobs: list[PreparedJob] = field(default_factory=list)
    constraint: Constraint | None = None
    source: Source | None = None

    def encode(self) -> tuple[bytes, bytes]:
        """Return a JSON head and the payloads of the jobs, one after another."""
        fields = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        for name in ("constraint", "source"):
            fields[name] = None if fields[name] is None else dataclasses.asdict(fields[name])
        fields["jobs"] = [
            {"prompt": job.prompt, "prompt_tokens": job.prompt_tokens, "max_new_tokens": job.max_new_tokens,
             "payload": len(job.payload), "planned": job.planned}
            for job in self.jobs
        ]  # fmt: skip
        return json.dumps(fields).encode(), b"".join(job.payload for job in self.jobs)

    @classmethod
    def decode(cls, head: bytes, payloads: bytes) -> "Accepted":
        fields, start, jobs = json.loads(head), 0, []
        for job in fields["jobs"]:
            end = start + job["payload"]
            jobs.append(PreparedJob(**{**job, "payload": payloads[start:end]}))
            start = end
        constraint, source = fields["constraint"], fields["source"]
        fields |= {"jobs": jobs, "constraint": constraint and Constraint(**constraint)}
        return cls(**{**fields, "source": source and Source(**source)})
