"""`gesso trace`: generate a text and write a file that replays its denoising steps."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gesso.cli.options import GenerationOptions, Json, Live, LoadOptions, with_options
from gesso.cli.terminal import follow, note, print_json, print_text
from gesso.errors import InputError

KINDS = (".html", ".svg", ".gif")


@with_options
def trace(
    prompt: Annotated[str, typer.Argument(help="Text to continue.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="run.html: an interactive page; run.svg or run.gif: an animation.")
    ] = Path("run.html"),
    live: Live = True,
    json: Json = False,
    *,
    loading: LoadOptions,
    options: GenerationOptions,
) -> None:
    """Continue a text and write a file that replays its denoising steps."""
    kind = output.suffix.lower()
    if kind not in KINDS:
        raise InputError(f"{output} has an unknown file type; end its name in {', '.join(KINDS)}")
    if kind == ".gif":
        from gesso.trace import gif
    if not output.parent.is_dir():
        raise InputError(f"cannot write {output.name}: there is no directory {output.parent}; create it first")
    keywords = options.keywords()
    model = loading.load(max_batch=1)
    from gesso.trace import html, svg
    from gesso.trace.run import CANDIDATES, TracedRun, recorded

    drafts: list[dict[str, Any]] = []
    events = model.stream(prompt, draft_logprobs=CANDIDATES, **keywords)
    result = follow(model, recorded(model, events, drafts), live and not json)
    run = TracedRun(prompt, drafts, result)
    if kind == ".gif":
        gif.write(run, output)
    else:
        output.write_text(html.page(run) if kind == ".html" else svg.svg(run), encoding="utf-8")
    if json:
        print_json({"output": str(output), "text": result.text, "steps": len(drafts), "seed": result.seed})
        return
    print_text(result.text)
    note(f"{output}: {len(drafts)} steps, {output.stat().st_size / 1e3:.0f} kB, seed {result.seed}")
