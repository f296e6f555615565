"""`python -m examples.sudoku_images.styles`: which held-out pictures a model reads without a mistake, by style.

The first table splits the pictures of the task by what they look like. The second one changes pictures on light paper
beyond the styles of training: larger angles and margins, and other fonts.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import gesso
from examples.sudoku_images.appearance import Colour, Style, rotation
from examples.sudoku_images.task import Drawing, SudokuImages
from gesso.eval.estimate import wilson
from gesso.eval.sudoku.reading import read_grid


def brightness(colour: Colour) -> float:
    """Return the luma of a colour, from 0 to 255 (ITU-R BT.601)."""
    red, green, blue = colour
    return 0.299 * red + 0.587 * green + 0.114 * blue


def is_light(style: Style) -> bool:
    return brightness(style.paper) >= 128


def is_faint(style: Style) -> bool:
    """Return whether ink and paper differ little in brightness: blue on black."""
    return abs(brightness(style.ink) - brightness(style.paper)) < 60


GROUPS: dict[str, Callable[[Style], bool]] = {
    "all": lambda style: True,
    "dark paper, ink of a similar brightness": lambda style: not is_light(style) and is_faint(style),
    "dark paper, other ink": lambda style: not is_light(style) and not is_faint(style),
    "light paper": is_light,
    "light paper, typed digits": lambda style: is_light(style) and not style.written,
    "light paper, written digits": lambda style: is_light(style) and style.written,
    "light paper, blurred": lambda style: is_light(style) and style.blur > 0,
    "light paper, noise": lambda style: is_light(style) and style.noise > 0,
    "light paper, a corner moved by more than 5 %": lambda style: (
        is_light(style) and max(map(abs, style.corners)) > 0.05
    ),
    "light paper, cells of less than 30 pixels": lambda style: is_light(style) and style.cell < 30,
}
CHANGES: dict[str, dict[str, Any]] = {
    "turned by 5 degrees": {"corners": rotation(5)},
    "turned by 10 degrees": {"corners": rotation(10)},
    "turned by 15 degrees": {"corners": rotation(15)},
    "margins of 15 % of the grid": {"margins": (0.15,) * 4},
    "margins of 25 % of the grid": {"margins": (0.25,) * 4},
    "typed digits": {"written": False},
}


def reads(g: gesso.Gesso, drawing: Drawing, **changes: Any) -> bool:
    """Return whether the model reads every cell of a picture right."""
    return read_grid(g, g.read_image(drawing.picture(**changes))) == drawing.puzzle


def show(name: str, right: Sequence[bool]) -> None:
    if right:
        low, high = wilson(sum(right), len(right))
        share = 100 * sum(right) / len(right)
        print(f"| {name} | {share:.1f} % ({100 * low:.1f} to {100 * high:.1f}) of {len(right)} |", flush=True)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description="Measure reading by style.")
    add = parser.add_argument
    add("-m", "--model", default="gesso-sudoku")
    add("--count", type=int, default=1000, help="pictures of the test split")
    add("--changed", type=int, default=200, help="pictures on light paper to change")
    add("--font", action="append", default=[], help="file of another font; may be repeated")
    options = parser.parse_args(words)
    g = gesso.load(options.model)
    asked = [item.ask for item in SudokuImages().items("test", options.count, seed=0)]
    drawings = [drawing for drawing in asked if isinstance(drawing, Drawing)]
    right = {drawing: reads(g, drawing) for drawing in drawings}
    for name, belongs in GROUPS.items():
        show(name, [right[drawing] for drawing in drawings if belongs(drawing.style)])
    light = [drawing for drawing in drawings if is_light(drawing.style)][: options.changed]
    fonts = {f"typed in {file}": {"written": False, "font": file} for file in options.font}
    for name, changes in (CHANGES | fonts).items():
        show(name, [reads(g, drawing, **changes) for drawing in light])


if __name__ == "__main__":
    main()
