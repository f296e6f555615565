"""Make text safe to print on a terminal."""

# Generated text may contain control characters, escape sequences, and marks that reverse the reading direction.
# Control characters are replaced by their pictures (␛), except line breaks and tabs; the others by U+FFFD.
_REPLACED: dict[int, int] = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_REPLACED |= dict.fromkeys((*range(0x80, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)


def printable(text: str) -> str:
    return text.translate(_REPLACED)
