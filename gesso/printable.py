"""Text that a terminal can only show, not obey."""

# A model writes any character, and a terminal obeys some of them: escape sequences, and the marks that turn the reading
# direction around. Control characters are shown as their pictures (␛); line breaks and tabs are text.
_TRAPS: dict[int, int] = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_TRAPS |= dict.fromkeys((*range(0x80, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)


def printable(text: str) -> str:
    return text.translate(_TRAPS)
