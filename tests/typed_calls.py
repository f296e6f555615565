"""Calls of a user's script, which mypy checks with the package: `make lint`. Nothing runs them.

An error that `type: ignore` names must be there, since unused comments are errors under `strict`.
"""

import gesso


def accepted() -> None:
    g = gesso.load(device="cpu")
    settings: gesso.DiffusionOptions = {"steps": 8, "sampler": "entropy-bound"}
    result: gesso.Result = g.generate("def f():", max_new_tokens=8, seed=1, preset="fast", regex="[a-z]+", **settings)
    print(result.text)
    for event in g.stream("abc", t_max=1, canvas_length=None, preset=gesso.Diffusion(steps=3), stop=["a", "b"]):
        if isinstance(event, gesso.Commit):
            print(event.text)
    print(g.chat([{"role": "user", "content": "Hi"}], thinking=True, tool_choice="none", settle=2).thinking)
    print(g.infill("a", "b", method="pinned", lengths=[3], eos_settles=True).candidates)
    print(g.infill_holes(["a", "b", "c"], candidates=2).middles, g.edit("abc", (0, 1), level=0.5, steps=4).replacement)
    print(g.request([1, 2], pins={0: 5}, top_logprobs=3))


def rejected(g: gesso.Gesso) -> None:
    g.generate("abc", stepz=8)  # type: ignore[call-arg]
    g.generate("abc", steps="8")  # type: ignore[arg-type]
    g.generate("abc", sampler="magic")  # type: ignore[arg-type]
    g.stream("abc", max_tokens=8)  # type: ignore[call-arg]
    g.chat([], thinking=1)  # type: ignore[arg-type]
    g.chat_request([], greed=True, tools=3)  # type: ignore[arg-type]
    g.stream_chat([], preset="best")  # type: ignore[arg-type]
    g.infill("a", "b", pins={0: 1})  # type: ignore[call-arg]
    g.infill_holes(["a", "b"], seed="1")  # type: ignore[arg-type]
    g.edit("abc", (0, 1), levl=0.5)  # type: ignore[call-arg]
    g.request("abc", settle=1.5)  # type: ignore[arg-type]
    gesso.Resolt  # type: ignore[attr-defined]  # noqa: B018
