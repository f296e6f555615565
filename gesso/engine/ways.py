"""How a model writes if a request leaves it open. Imports no torch: the server resolves requests without a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gesso.settings import BY_TOKEN, DRAWING, SHORT, Diffusion, DiffusionOptions, PresetName, WriteName, choose


@dataclass(frozen=True, kw_only=True)
class Writing:
    """How requests are written that leave it open.

    `rates` are the expected tokens per second by the length of a canvas, 1 for token by token; empty if `why` has
    another reason.
    """

    write: WriteName = "canvas"
    canvas_length: int | None = None  # None: the checkpoint's
    rates: Mapping[int, float] = field(default_factory=dict)
    why: str = "the default"

    @property
    def summary(self) -> str:
        if self.write in BY_TOKEN:
            return f"{'token by token' if self.write == 'tokens' else 'verified drafts'} ({self.why})"
        length = "" if self.canvas_length is None else f" of {self.canvas_length}"
        return f"canvases{length} ({self.why})"

    def settings(
        self,
        defaults: Diffusion,
        preset: PresetName | Diffusion | None,
        given: DiffusionOptions,
        *,
        needs_canvas: bool,
    ) -> Diffusion:
        """Return the settings of a request.

        It leaves open how it is written if it gives neither `write` nor a preset other than "laptop". It is then
        written with canvases if it gives another setting of canvases. `needs_canvas`: it has pins, a constraint or a
        draft to resume.
        """
        if "write" in given or preset not in (None, SHORT):
            return choose(defaults, preset, **given)
        canvas: DiffusionOptions = {**given, "write": "canvas"}
        if needs_canvas or not given.keys() <= DRAWING | {"settle"}:
            return choose(defaults, preset, **canvas)
        if self.write in BY_TOKEN:  # where every token is final at once, as `settle` asks for
            draws: Any = {name: value for name, value in given.items() if name in DRAWING}
            return choose(defaults, write=self.write, **draws)
        if self.canvas_length is not None:
            canvas = {**canvas, "canvas_length": self.canvas_length}
        return choose(defaults, preset, **canvas)
