"""Make text safe to print on a terminal, and messages fit for the command line."""

import re

# Generated text may contain control characters, escape sequences, and marks that reverse the reading direction.
# Control characters are replaced by their pictures (␛), except line breaks and tabs; the others by U+FFFD.
_REPLACED: dict[int, int] = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_REPLACED |= dict.fromkeys((*range(0x80, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)


# Arguments of `gesso.load` as messages name them. On the command line they are options.
_ARGUMENT = re.compile(r"\b(device|dtype|quantize|memory|adapter|max_batch|max_length)=([\w.%:/-]*[\w%])")


def in_options(message: str) -> str:
    """Return an error message with the arguments of Python, such as device=cpu, as options of the command line."""
    return _ARGUMENT.sub(lambda match: f"--{match[1].replace('_', '-')} {match[2]}", message)


def encodable(text: str) -> str:
    """Return a text with `?` in place of half surrogate pairs, such as those of a file's name that is not UTF-8."""
    return text.encode("utf-8", "replace").decode()


def printable(text: str) -> str:
    return text.translate(_REPLACED)
