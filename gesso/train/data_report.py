"""The report of `gesso train RECIPE --check`: sample examples with their targets, lengths, rejected rows.

The dataset must have on_bad_row="skip" for all rejected rows to be listed; with "stop" its construction fails.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from gesso.chat.tokenizer import Tokenizer
from gesso.printable import printable
from gesso.train.data import Dataset, Example, Rejected

BINS = 12  # in the histogram, at most
BAR = 40  # characters of its longest bar
SHOWN = 2000  # characters of each part of an example; a longer part is shown without its middle
MARKS = ("«", "»")  # around a target, where the terminal has no styles


@dataclass(frozen=True)
class ExamplePart:
    text: str
    learnt: bool


@dataclass(frozen=True, kw_only=True)
class ExampleSample:
    source: str
    line: int
    tokens: int
    parts: tuple[ExamplePart, ...]


@dataclass(frozen=True)
class Bin:
    """Count of the examples with `low` to `high` tokens, both included."""

    low: int
    high: int
    examples: int


@dataclass(frozen=True, kw_only=True)
class DataReport:
    rows: int
    good: int
    tokens: int
    response_tokens: int
    responses: int
    context_only: int  # responses that are no targets, because the chat template renders them otherwise in the history
    longest: int
    max_length: int
    histogram: tuple[Bin, ...]
    samples: tuple[ExampleSample, ...]
    rejected: tuple[Rejected, ...]


def inspect(dataset: Dataset, tokenizer: Tokenizer, examples: int = 3) -> DataReport:
    """Report on all rows, with `examples` of the good ones as samples, spread evenly over the files."""
    chosen = {number * dataset.good // examples for number in range(examples)}
    lengths: Counter[int] = Counter()
    samples: list[ExampleSample] = []
    response_tokens = responses = context_only = 0
    good_rows = (row for row in dataset.read() if isinstance(row, Example))
    for number, row in enumerate(good_rows):
        if number in chosen:
            samples.append(_sample(row, tokenizer))
        lengths[len(row.tokens)] += 1
        responses += len(row.spans)
        response_tokens += sum(end - start for start, end in row.spans)
        context_only += row.context_only
    return DataReport(
        rows=dataset.rows,
        good=dataset.good,
        tokens=sum(length * count for length, count in lengths.items()),
        response_tokens=response_tokens,
        responses=responses,
        context_only=context_only,
        longest=max(lengths, default=0),
        max_length=dataset.settings.max_length,
        histogram=tuple(_histogram(lengths)),
        samples=tuple(samples),
        rejected=tuple(dataset.rejected),
    )


def _sample(example: Example, tokenizer: Tokenizer) -> ExampleSample:
    parts: list[ExamplePart] = []
    done = 0
    for start, end in (*example.spans, (len(example.tokens), len(example.tokens))):
        for piece, learnt in ((example.tokens[done:start], False), (example.tokens[start:end], True)):
            if piece:
                parts.append(ExamplePart(tokenizer.decode(_shown(piece, example, tokenizer), special=True), learnt))
        done = end
    return ExampleSample(source=example.source, line=example.line, tokens=len(example.tokens), parts=tuple(parts))


def _shown(piece: Sequence[int], example: Example, tokenizer: Tokenizer) -> Sequence[int]:
    """Return the tokens with one image token for each image in place of its hundreds of soft tokens."""
    if not example.images or tokenizer.image_ids is None:
        return piece
    mark = tokenizer.image_ids[0]
    return [token for before, token in zip((-1, *piece), piece, strict=False) if token != mark or before != mark]


def _histogram(lengths: Counter[int]) -> Iterator[Bin]:
    """Yield bins of one round width, from that of the shortest example to that of the longest."""
    if not lengths:
        return
    shortest, longest = min(lengths), max(lengths)
    rounds = (digit * 10**power for power in range(19) for digit in (1, 2, 5))
    width = next(width for width in rounds if longest // width - shortest // width < BINS)
    filled = Counter[int]()
    for length, count in lengths.items():
        filled[length // width] += count
    for place in range(shortest // width, longest // width + 1):
        yield Bin(place * width, (place + 1) * width - 1, filled[place])


# --- rendering ------------------------------------------------------------------------------------------------------


def render(report: DataReport, console: Console) -> None:
    styled = console.color_system is not None
    for sample in report.samples:
        _print(console, Text(f"{sample.source}:{sample.line}, {sample.tokens:,} tokens", style="bold"))
        _print(console, _marked(sample, styled), Text())
    if report.samples:
        mark = "underlined" if styled else f"between {MARKS[0]} and {MARKS[1]}"
        _print(console, Text(f"The model is trained on the text {mark}."))
    if report.histogram:
        _print(console, Text("\nLength in tokens", style="bold"), *_bars(report.histogram))
    _print(console, Text("\nRows", style="bold"), *(Text(line) for line in _counts(report)))
    if report.rejected:
        _print(console, Text("\nRejected", style="bold"))
        _print(console, *(Text(printable(str(row))) for row in report.rejected))


def _print(console: Console, *texts: Text) -> None:
    for text in texts:
        console.print(text, soft_wrap=True)


def _marked(sample: ExampleSample, styled: bool) -> Text:
    shown = Text()
    for part in sample.parts:
        text = printable(_shortened(part.text))
        if styled:
            shown.append(text, style="bold underline" if part.learnt else "dim")
        else:
            shown.append(text.join(MARKS) if part.learnt else text)
    return shown


def _shortened(text: str) -> str:
    left_out = len(text) - SHOWN
    half = SHOWN // 2
    return text if left_out <= 0 else f"{text[:half]} [… {left_out:,} characters …] {text[-half:]}"


def _bars(bins: tuple[Bin, ...]) -> Iterator[Text]:
    most = max(bin.examples for bin in bins)
    width = len(f"{bins[-1].high:,}")
    for bin in bins:
        bar = "█" * -(-bin.examples * BAR // most)  # rounded up, so that a single example is visible
        yield Text(f"{bin.low:>{width},} to {bin.high:>{width},}  {bar:<{BAR}}  {bin.examples:,}")


def _counts(report: DataReport) -> Iterator[str]:
    yield f"{report.rows:,} rows: {report.good:,} good, {len(report.rejected):,} rejected"
    share = report.response_tokens / max(report.tokens, 1)
    targets = f"{report.response_tokens:,} ({share:.0%}) of them targets in {report.responses:,} responses"
    yield f"{report.tokens:,} tokens, {targets}"
    yield f"longest: {report.longest:,} tokens of {report.max_length:,} allowed"
    if report.context_only:
        yield (
            f"{report.context_only:,} responses of earlier turns are context only: "
            "the chat template renders them differently once they are history"
        )
