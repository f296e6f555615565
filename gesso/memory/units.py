"""Counts and bytes as text."""


def short(count: int, units: tuple[str, str, str, str] = (" B", " M", " K", "")) -> str:
    """Return a count in the largest unit that it reaches: billions, millions, thousands or ones."""
    for unit, size in zip(units, (1e9, 1e6, 1e3), strict=False):
        if count >= size:
            return f"{count / size:.2f}{unit}"
    return f"{count}{units[-1]}"


def gigabytes(size: int) -> str:
    return short(size, (" GB", " MB", " kB", " B"))
