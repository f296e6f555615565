"""A repair without a model: the rules that a programmer would write first, as a baseline.

JSON: complete the quotes of each line, then follow the brackets with a stack and complete commas and colons. Markdown:
line by line, with one word of context for inline marks.
"""

import re

STRING = r'"(?:\\.|[^"\\\n])*"'
LITERAL = r"-?\d[\d.eE+-]*|true|false|null|NaN|-?Infinity"
VALUE = rf"(?:{STRING}|{LITERAL}|\{{\}}|\[\]|[{{\[])"
JSON_LINE = re.compile(rf" *(?:(?:{STRING} *:? *)?{VALUE}|[}}\]]+)?,?")
JSON_TOKEN = re.compile(rf'\s+|{STRING}|[{{}}\[\],:]|[^\s{{}}\[\],:"]+|"')
FENCE = re.compile(r"( *)(`{2,}|~{2,})([\w+-]*) *")
ITEM = re.compile(r"( *)([-*+]) (?=\S)")


def repair(kind: str, text: str) -> str:
    return repair_markdown(text) if kind == "markdown" else repair_json(text)


# --- JSON -----------------------------------------------------------------------------------------------------------


def repair_json(text: str) -> str:
    out: list[str] = []
    stack: list[str] = []
    last, at = "", 0  # the kind of the last token that is not white space, and its index in `out`

    def add(token: str, kind: str) -> None:
        nonlocal last, at
        out.append(token)
        last, at = kind, len(out) - 1

    for token in JSON_TOKEN.findall("\n".join(map(_with_quotes, text.split("\n")))):
        if token.isspace():
            out.append(token)
        elif token in "}]":
            if last == ",":
                out[at] = ""
            if stack:
                add("}" if stack.pop() == "{" else "]", "value")
        elif token == ",":
            if last == "value":
                add(token, ",")
        elif token == ":":
            add(token, ":")
        else:
            is_key = bool(stack) and stack[-1] == "{" and last != ":" and last != "key"
            if last == "value":
                out[at] += ","
            elif last == "key":
                out[at] += ":"
            if token in "{[":
                stack.append(token)
                add(token, "open")
            else:
                add(token, "key" if is_key else "value")
    for bracket in reversed(stack):
        out.append("\n" + "}" if bracket == "{" else "\n]")
    return "".join(out)


def _with_quotes(line: str) -> str:
    """Insert a quote where the line becomes a line of indented JSON."""
    if JSON_LINE.fullmatch(line) or line.count('"') % 2 == 0:
        return line
    begin = len(line) - len(line.lstrip())
    tried = (line[:at] + '"' + line[at:] for at in range(begin, len(line) + 1))
    return next((one for one in tried if JSON_LINE.fullmatch(one)), line)


# --- Markdown -------------------------------------------------------------------------------------------------------


def repair_markdown(text: str) -> str:
    lines = text.split("\n")
    out: list[str] = []
    opened: re.Match[str] | None = None
    for number, line in enumerate(lines):
        if fence := FENCE.fullmatch(line):
            mark = fence[2][0] * 3 if len(fence[2]) == 2 else fence[2]
            if opened and fence[3]:  # a fence opens while another is open: close that one first
                out.append(opened[1] + mark)
                opened = None
            out.append(fence[1] + mark + fence[3])
            opened = None if opened else fence
        elif opened:
            out.append(line)
        else:
            out += _line(line, out[-1] if out else "", lines[number + 1] if number + 1 < len(lines) else "")
    if opened:
        out.append(opened[1] + "```")
    return "\n".join(out)


def _line(line: str, before: str, after: str) -> list[str]:
    line = re.sub(r"^(#{1,6})(?=[A-Za-z`*])", r"\1 ", line)
    line = re.sub(r"^( *(?:[-+]|\d+[.)]))(?=[A-Za-z`*\[])", r"\1 ", line)
    items = ITEM.match(before), ITEM.match(after)
    if items[0] and items[1] and items[0][0] == items[1][0] and re.match(r"[\w`\[*]", line) and not ITEM.match(line):
        line = items[0][0] + line  # between two items of a list
    if line.startswith("|"):
        return _row(line, before, after)
    return [_inline(line)]


def _row(line: str, before: str, after: str) -> list[str]:
    """Return a row of a table, with the line that must follow the header."""
    is_rule = re.fullmatch(r"[|:\- ]+", line) is not None
    cells = line.count("|") - 1
    if is_rule and before.count("|") - 1 != cells:
        return ["|" + " --- |" * (before.count("|") - 1)]
    if not before.startswith("|") and after.startswith("|") and not re.fullmatch(r"[|:\- ]+", after):
        return [line, "|" + " --- |" * cells]
    return [line]


def _inline(line: str) -> str:
    line = re.sub(r"(?<!\*)\*\*([^*\n]+)\*(?!\*)|(?<!\*)\*([^*\n]+)\*\*(?!\*)", r"**\1\2**", line)
    for mark in ("`", "**"):
        if line.count(mark) % 2:
            line = _paired(line, mark)
    if line.count("[") < line.count("]"):
        line = re.sub(r"(?<!\S)([^\s\[\]]+\]\()", r"[\1", line, count=1)
    elif line.count("]") < line.count("["):
        line = re.sub(r"(\[[^\[\]()]+)(\([^()\s]+\))", r"\1]\2", line, count=1)
    if line.count("(") < line.count(")"):
        line = re.sub(r"\](?=[^\s()\[\]]+\))", "](", line, count=1)
    elif line.count(")") < line.count("("):
        line = re.sub(r"(\]\([^()\s]*[\w/])(?!\))(?=[^\w/]*(?:\s|$))", r"\1)", line, count=1)
    return line


def _paired(line: str, mark: str) -> str:
    """Add the partner of the last mark: after the next word, or before the previous one."""
    at = line.rfind(mark)
    if re.match(r"\w", line[at + len(mark) :]):
        end = re.search(r"(?=[.,;:)]*(?:\s|$))", line[at + len(mark) :])
        assert end is not None  # the end of the line matches
        end_at = at + len(mark) + end.start()
        return line[:end_at] + mark + line[end_at:]
    start = re.search(r"\S*$", line[:at])
    assert start is not None
    return line[: start.start()] + mark + line[start.start() :]
