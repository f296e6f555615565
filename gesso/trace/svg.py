"""A run as an animated SVG. With reduced motion, it shows only the finished text."""

from html import escape

from gesso.trace.layout import COLUMNS, Picture, picture
from gesso.trace.run import TracedRun

CELL = 8.4  # pixels of a character
LINE = 22  # of a row
MARGIN = 16  # of the border
FRAME, REST = 0.15, 3.0  # seconds per step, and for the finished text
COLOURS = ("none", "#fbf1dc", "#f7e7c4", "#f2daa8", "#eccd8c", "#e9bd85", "#e6ae7f", "#e4a07b", "#e39378")


def svg(run: TracedRun) -> str:
    drawn = picture(run)
    width, height = 2 * MARGIN + CELL * COLUMNS, 2 * MARGIN + LINE * drawn.rows
    body = [_text(row, column, text, "given") for row, column, text in drawn.prompt]
    for span in drawn.spans:
        name = f"v{span.start}-{span.end}" + (" last" if span.end == drawn.frames else " early")
        if span.level:
            x, y = MARGIN + CELL * span.column, MARGIN + LINE * span.row
            size = f'width="{CELL * span.width:.1f}" height="{LINE - 3}"'
            body.append(f'<rect class="{name}" x="{x:.1f}" y="{y}" {size} fill="{COLOURS[span.level]}"/>')
        if span.text.strip():
            body.append(_text(span.row, span.column, span.text, name + " s" * span.settled))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
        f'height="{height}" role="img"><title>{_escape(run.prompt.strip()[:80])}</title><style>{_style(drawn)}</style>'
        f'<rect width="100%" height="100%" fill="#fffefb"/>{"".join(body)}</svg>\n'
    )


def _text(row: int, column: int, text: str, name: str) -> str:
    x, y = MARGIN + CELL * column, MARGIN + LINE * row + 14
    return f'<text class="{name}" x="{x:.1f}" y="{y}" textLength="{CELL * len(text):.1f}">{_escape(text)}</text>'


def _style(drawn: Picture) -> str:
    """Return one CSS animation per distinct range of visible frames, as shares of the total time."""
    total = FRAME * drawn.frames + REST
    rules = [
        "text{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#4a443b;white-space:pre}",
        ".s{fill:#211e19;font-weight:600}.given{fill:#8a8276}",
    ]
    for start, end in sorted({(span.start, span.end) for span in drawn.spans}):
        if (start, end) == (0, drawn.frames):
            continue
        share = [100 * FRAME * frame / total for frame in (start, end)]
        steps = [f"0%{{visibility:{'visible' if start == 0 else 'hidden'}}}"]
        steps += [f"{share[0]:.2f}%{{visibility:visible}}"] if start else []
        steps += [f"{share[1]:.2f}%{{visibility:hidden}}"] if end < drawn.frames else []
        last = "visible" if end == drawn.frames else "hidden"
        name = f"v{start}-{end}"
        rules.append(f"@keyframes {name}{{{''.join(steps)}100%{{visibility:{last}}}}}")
        rules.append(f".{name}{{animation:{name} {total:.2f}s step-end infinite}}")
    rules.append("@media(prefers-reduced-motion:reduce){*{animation:none!important}.early{visibility:hidden}}")
    return "".join(rules)


def _escape(text: str) -> str:
    """Escape text for XML, which cannot express most control characters."""
    return escape("".join(c if c.isprintable() or c == " " else "�" for c in text))
