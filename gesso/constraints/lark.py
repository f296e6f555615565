"""Parse a grammar in the notation of Lark, as llguidance reads it.

    start: pair ("," pair)*            // name: definition; the whole text is a `start`
    ?pair: NAME "=" (NUMBER | "none"i) -> pair
    NAME: /[a-z]+/i
    NUMBER: DIGIT~1..3 ["." DIGIT+]
    %import common.DIGIT
    %ignore " "

Names of terminals are in capitals, and ignored text may follow each terminal. Aliases, `?`, `!` and priorities do not
change the texts.
"""

import re

from gesso.constraints.charset import char_class
from gesso.constraints.grammar_parser import Grammar, Node, Use
from gesso.constraints.limits import Limits
from gesso.constraints.regex import regex_term
from gesso.constraints.syntax import Alternatives, Repetition, Sequence
from gesso.constraints.term import Term
from gesso.constraints.terms import literal
from gesso.errors import InputError

_INT = "[0-9]+"
_DECIMAL = r"(?:[0-9]+\.[0-9]*|\.[0-9]+)"
_FLOAT = rf"(?:[0-9]+[eE][+-]?[0-9]+|{_DECIMAL}(?:[eE][+-]?[0-9]+)?)"
_COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": _INT,
    "SIGNED_INT": f"[+-]?{_INT}",
    "DECIMAL": _DECIMAL,
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": f"[+-]?{_FLOAT}",
    "NUMBER": f"(?:{_FLOAT}|{_INT})",
    "SIGNED_NUMBER": f"[+-]?(?:{_FLOAT}|{_INT})",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[a-zA-Z_][a-zA-Z0-9_]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"\#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "C_COMMENT": r"/\*(?:[^*]|\*+[^*/])*\*+/",
    "SQL_COMMENT": r"--[^\n]*",
}

_NAME = re.compile(r"_*[A-Za-z][A-Za-z0-9_]*")
_DEFINITION = re.compile(r"[?!]*(_*[A-Za-z][A-Za-z0-9_]*)(?:\.-?[0-9]+)?[ \t]*:")
_REGEX = re.compile(r"/((?:\\.|[^/\\\n])+)/([a-zA-Z]*)")
_ALIAS = re.compile(r"->[ \t]*_*[A-Za-z]\w*")
_CASELESS = re.compile(r"i(?![A-Za-z0-9_])")
_IMPORT = re.compile(r"%import[ \t]+common(?:\.(\w+)[ \t]*(?:->[ \t]*(\w+))?|[ \t]*\(([\w\s,]*)\))")
_SKIPPED = re.compile(r"%llguidance[ \t]*\{[^}]*\}")
_DIRECTIVE = re.compile(r"%\w*")
_IGNORE = re.compile(r"%ignore\b")


class LarkGrammar(Grammar):
    blank = re.compile(r"(?:[ \t\r\n]|//[^\n]*|\#[^\n]*)*")
    root = "start"
    example = "start: ..."
    all_used = False  # a grammar often imports more than it uses

    def __init__(self, text: str, limits: Limits) -> None:
        self.limits = limits
        self.ignored: list[Node] = []
        super().__init__(text)
        if self.ignored and self.root in self.trees:
            blanks: Node = Repetition(item=Alternatives(tuple(self.ignored)), low=0, high=None)
            for name, tree in self.trees.items():
                if not _is_terminal(name):
                    self.trees[name] = _spaced(tree, blanks)
            self.trees[self.root] = Sequence((blanks, self.trees[self.root]))

    def _definition(self) -> None:
        start = self.at
        if self.starts("%"):
            self._directive(start)
            return
        definition = _DEFINITION.match(self.text, start)
        if definition is None:
            raise self.error(start, 'expected a rule such as name: "text"')
        name = definition[1]
        self.match(_DEFINITION)
        self._define(name, start)
        use = _rule_in(self.trees[name]) if _is_terminal(name) else None
        if use is not None:
            raise self.error(use.at, f"the terminal {name!r} uses the rule {use.name!r}; use terminals only")

    def _directive(self, start: int) -> None:
        if self.match(_IGNORE) is not None:
            self.ignored.append(self.choice())
        elif imported := _IMPORT.match(self.text, start):
            self.match(_IMPORT)
            single, alias, several = imported.groups()
            if single:
                self._import(single, alias or single, start)
            else:
                for name in several.split(","):
                    self._import(name.strip(), name.strip(), start)
        elif self.match(_SKIPPED) is None:
            name = _DIRECTIVE.match(self.text, start)
            raise self.error(start, f"{name[0] if name else '%'} is not supported; %ignore and %import common.NAME are")

    def _import(self, name: str, alias: str, start: int) -> None:
        """Define a terminal of Lark's library."""
        if name not in _COMMON:
            raise self.error(start, f"common has no terminal {name!r} here; define it in the grammar")
        self.defined[alias] = start
        self.trees[alias] = regex_term(_COMMON[name])

    def item(self) -> Node | None:
        start, sign = self.at, self.text[self.at : self.at + 1]
        if sign in ("", "|", ")", "]", "%") or _DEFINITION.match(self.text, start):
            return None
        if self.match(_ALIAS) is not None:
            return Sequence(())
        if sign == '"':
            return self._literal(start)
        if sign == "/":
            return self._regex(start)
        if self.take("("):
            return self.group(start)
        if self.take("["):
            return Repetition(item=self.group(start, "]"), low=0, high=1)
        name = self.match(_NAME)
        if name is None:
            raise self.error(start, f"unexpected {sign!r}; write literal text in double quotes")
        return Use(name, start)

    def repeated(self, item: Node) -> Node:
        while not _DEFINITION.match(self.text, self.at):
            start = self.at
            if self.take("~"):
                low = self._integer()
                high = self._integer() if self.take("..") else low
                if low > high:
                    raise self.error(start, "a count must look like ~2 or ~2..5")
                self.check_counts(start, low, high)
                item = Repetition(item=item, low=low, high=high)
                continue
            counts = self.counts()
            if counts is None:
                break
            item = Repetition(item=item, low=counts[0], high=counts[1])
        return item

    def _text(self, start: int) -> str:
        self.at += 1
        return "".join(self._chars(start, '"'))

    def _literal(self, start: int) -> Term:
        content = self._text(start)
        if self.match(_CASELESS) is not None:
            return regex_term(re.escape(content), flags="i", limits=self.limits)
        if self.starts(".."):
            self.at += 2
            last = self._text(self.at) if self.starts('"') else ""
            self.match(self.blank)
            if len(content) != 1 or len(last) != 1 or content > last:
                raise self.error(start, 'a range must go from one character to a later one, such as "a".."z"')
            return char_class(((ord(content), ord(last)),))
        self.match(self.blank)
        return literal(content)

    def _regex(self, start: int) -> Term:
        regex = _REGEX.match(self.text, start)
        if regex is None:
            raise self.error(start, "this / is not closed on its line")
        self.match(_REGEX)
        expression, all_flags = regex.groups()
        flags = all_flags.replace("u", "")
        if set(flags) - set("isx"):
            raise self.error(start, f"the flags {all_flags!r} are not supported; i, s, u and x are")
        try:
            return regex_term(expression, flags=flags, limits=self.limits)
        except InputError as error:
            raise self.error(start, str(error)) from None


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _rule_in(node: Node) -> Use | None:
    """Return the first use of a rule that is not a terminal; None without any."""
    match node:
        case Use(name):
            return None if _is_terminal(name) else node
        case Sequence(items) | Alternatives(items):
            uses = (_rule_in(item) for item in items)
            return next((use for use in uses if use is not None), None)
        case Repetition(item):
            return _rule_in(item)
    return None


def _spaced(node: Node, blanks: Node) -> Node:
    """Allow ignored text after each terminal."""
    match node:
        case Sequence(items):
            return Sequence(tuple(_spaced(item, blanks) for item in items))
        case Alternatives(items):
            return Alternatives(tuple(_spaced(item, blanks) for item in items))
        case Repetition(item, low, high):
            return Repetition(item=_spaced(item, blanks), low=low, high=high)
        case Use(name) if not _is_terminal(name):
            return node
    return Sequence((node, blanks))
