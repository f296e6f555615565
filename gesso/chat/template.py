"""Render chat templates, which come with downloaded checkpoints, in a sandbox that limits their work.

Templates receive plain data and render as in `transformers`. jinja2's sandbox keeps a template from reaching the
interpreter, but not from looping for hours or allocating terabytes. So each rendering has a budget, which three hooks
enforce without signals or threads:

- The compiler inserts a counter at the start of every loop, macro and block.
- Every call, filter and operator that can create a large value is checked before it runs, and its result afterwards.
- No string or list may exceed MAX_CHARS. So each operation is short, and the clock is read between operations.
"""

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_STEPS = 1_000_000  # loop iterations, calls, filters and operators
MAX_CHARS = 1 << 24  # of one string, or of all elements of a list
MAX_WORK = 1 << 28  # characters of all intermediate results together
MAX_SECONDS = 10.0
MAX_BITS = 1 << 13  # of an integer; Python itself prints no more than 4,300 digits
NODE = 128  # characters that an element of a list or dictionary counts as


class Runaway(TemplateError):
    """A template exceeded one of the limits of this module."""


class Budget:
    """The work that one rendering has left."""

    def __init__(self) -> None:
        self.steps, self.work, self.end = MAX_STEPS, MAX_WORK, time.monotonic() + MAX_SECONDS

    def spend(self, work: int) -> None:
        self.steps -= 1
        self.work -= work
        if self.steps < 0:
            raise Runaway(f"it takes more than {MAX_STEPS:,} steps")
        if self.work < 0:
            raise Runaway(f"its intermediate results exceed {MAX_WORK:,} characters")
        if time.monotonic() > self.end:
            raise Runaway(f"it takes longer than {MAX_SECONDS:g} s")


_budget: ContextVar[Budget | None] = ContextVar("template_budget", default=None)


def render(template: Any, variables: Mapping[str, Any]) -> str:
    """Render a template of `environment()` with its own budget."""
    token = _budget.set(Budget())
    try:
        return str(template.render(variables))
    finally:
        _budget.reset(token)


def environment() -> Environment:
    """Return the environment in which `transformers` renders templates, with limits."""
    env = _LimitedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation], finalize=_charge
    )
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    env.filters["tojson"] = _tojson
    # Chat templates use neither: lipsum generates text of any length, urlize matches slow regular expressions.
    del env.globals["lipsum"], env.filters["urlize"]
    env.filters = {name: _limited_filter(name, filter) for name, filter in env.filters.items()}
    return env


# --- sizes --------------------------------------------------------------------------------------------------------


def _size(value: Any) -> int:
    """Return the size of a value in characters. Shared parts count each time they occur, as in printing."""
    total, waiting = 0, [value]
    while waiting and total <= MAX_CHARS:
        one = waiting.pop()
        if isinstance(one, str | bytes):
            total += len(one)
        elif isinstance(one, list | tuple | set | frozenset):
            total += NODE * len(one)
            waiting.extend(one)
        elif isinstance(one, dict | Namespace):
            fields: dict[Any, Any] = one._Namespace__attrs if isinstance(one, Namespace) else one
            total += NODE * len(fields)
            waiting.extend(fields)
            waiting.extend(fields.values())
    if total > MAX_CHARS:
        raise Runaway(f"it creates a text or list of more than {MAX_CHARS:,} characters")
    return total


def _charge(value: Any) -> Any:
    """Charge a value to the budget and return it."""
    size = _size(value)
    if (budget := _budget.get()) is not None:  # there is none while a template is compiled, which evaluates constants
        budget.spend(size)
    return value


def _check_size(size: int) -> None:
    if size > MAX_CHARS:
        raise Runaway(f"it would create a text or list of {size:,} characters; at most {MAX_CHARS:,} are allowed")


# --- operations that can create large values ------------------------------------------------------------------------

# The result may be as large as the product of all arguments.
MULTIPLYING = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs", "indent", "batch", "slice", "wordwrap"))
UNAVAILABLE = frozenset(("translate", "to_bytes", "format_map"))
WIDE_FORMAT = re.compile(r"\d{5}|\{[^{}]*\{|%[^a-zA-Z%]*\*")  # a width of five digits, or one given as an argument


def _check(name: str, receiver: Any, given: tuple[Any, ...]) -> None:
    """Check a filter or a method of a string or number before it runs."""
    if name in UNAVAILABLE:
        raise Runaway(f"{name} is not available in chat templates")
    if name == "replace" and len(given) > 1 and all(isinstance(value, str) for value in (receiver, *given[:2])):
        _check_size(len(receiver) + receiver.count(given[0]) * len(given[1]))
    elif name in MULTIPLYING or name == "replace":
        sizes = (abs(value) if isinstance(value, int) else _size(value) for value in (receiver, *given))
        _check_size(math.prod(max(1, size) for size in sizes))
    elif name == "format" and isinstance(receiver, str):
        _check_format(receiver, given)
    elif name == "round" and any(isinstance(value, int) and value > 1000 for value in given):
        raise Runaway("it rounds to more than 1,000 digits")
    elif name == "sum" and any(isinstance(value, list | tuple) for value in given):
        raise Runaway("it adds up lists; sum must start from a number")


def _check_format(form: str, given: Iterable[Any]) -> None:
    if WIDE_FORMAT.search(form):
        raise Runaway("it formats with a width of more than four digits")
    _check_size(len(form) + (form.count("{") + form.count("%")) * (10_000 + sum(map(_size, given))))


def _as_list(value: Any) -> Any:
    """Return an iterator as a list, whose size is known; return other values unchanged."""
    if isinstance(value, str) or not hasattr(value, "__next__"):
        return value
    found: list[Any] = []
    total = 0
    for one in value:
        total += NODE + _size(one)
        _check_size(total)
        found.append(one)
    return found


def _limited_filter(name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
    # Some filters take the environment or a context as their first argument.
    skip = 1 if hasattr(filter, "jinja_pass_arg") else 0

    @wraps(filter)
    def checked(*arguments: Any, **options: Any) -> Any:
        front, rest = arguments[:skip], arguments[skip:]
        if rest and name in ("join", "list", "sum", "sort", "unique"):
            rest = (_as_list(rest[0]), *rest[1:])
        if rest and name == "join":
            separator = rest[1] if len(rest) > 1 else options.get("d", "")
            _check_size(_size(rest[0]) + _size(separator) * (len(rest[0]) if hasattr(rest[0], "__len__") else 1))
        _check(name, rest[0] if rest else None, (*rest[1:], *options.values()))
        return _charge(filter(*front, *rest, **options))

    return checked


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > MAX_BITS:
        raise Runaway(f"it creates a number of more than {MAX_BITS:,} bits")
    return left**right


def _product(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_BITS:
            raise Runaway(f"it creates a number of more than {MAX_BITS:,} bits")
    else:
        times = max((value for value in (left, right) if isinstance(value, int)), default=0)
        _check_size(times * (_size(left) + _size(right)))
    return left * right


def _sum(left: Any, right: Any) -> Any:
    if not isinstance(left, int | float):
        _check_size(_size(left) + _size(right))
    return left + right


def _remainder(left: Any, right: Any) -> Any:
    if isinstance(left, str):
        _check_format(left, [right])
    return left % right


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {"+": _sum, "*": _product, "**": _power, "%": _remainder}


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    indent, separators = options.get("indent"), options.get("separators")
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= 16):
        raise Runaway("tojson indents by 0 to 16 spaces")
    if separators is not None and sum(map(len, separators)) > 16:
        raise Runaway("the separators of tojson are too long")
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


# --- jinja2 -------------------------------------------------------------------------------------------------------


class _Generation(Extension):
    """Render the body of `{% generation %}`, which marks the part to train on."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _LimitedEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(_OPERATORS)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _InsertCounters().visit(tree)
        tree.set_environment(self)
        return tree

    def tick(self, characters: int) -> bool:
        """Count one iteration of a body with this number of literal characters."""
        if (budget := _budget.get()) is not None:
            budget.spend(characters)
        return True

    def charge(self, value: Any) -> Any:
        return _charge(value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        return _charge(_OPERATORS[operator](left, right))

    def call(self, context: Context, callable: Any, /, *arguments: Any, **options: Any) -> Any:
        if getattr(callable, "__func__", None) in (_LimitedEnvironment.tick, _LimitedEnvironment.charge):
            return callable(*arguments)
        method = getattr(callable, "__wrapped__", callable)  # the sandbox wraps str.format
        receiver = getattr(method, "__self__", None)
        if isinstance(receiver, str | bytes | int):
            if getattr(method, "__name__", "") == "join" and len(arguments) == 1:
                parts = _as_list(arguments[0])
                arguments = (parts,)
                _check_size(_size(parts) + _size(receiver) * len(parts))
            _check(method.__name__, receiver, (*arguments, *options.values()))
        return _charge(super().call(context, callable, *arguments, **options))


class _InsertCounters(NodeTransformer):
    """Insert calls of `tick` and `charge` into a template."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self._count(node)
        if node.test is not None:
            node.test = nodes.And(_call("tick", nodes.Const(0), node), node.test, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Concat:
        self.generic_visit(node)
        node.nodes = [_call("charge", part, node) for part in node.nodes]
        return node

    def visit_List(self, node: nodes.List) -> nodes.Expr:
        return self._literal(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        return self._literal(node, node.items) if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        return self._literal(node, [part for pair in node.items for part in (pair.key, pair.value)])

    def _literal(self, node: nodes.Expr, parts: Iterable[nodes.Expr]) -> nodes.Expr:
        constant = all(isinstance(part, nodes.Const | nodes.TemplateData) for part in parts)
        self.generic_visit(node)
        return node if constant else _call("charge", node, node)

    def _count(self, node: Any) -> Any:
        literal = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("tick", nodes.Const(literal), node), lineno=node.lineno))
        return node

    visit_Macro = visit_CallBlock = visit_Block = _count


def _call(name: str, argument: nodes.Expr, at: nodes.Node) -> nodes.Call:
    function = nodes.EnvironmentAttribute(name, lineno=at.lineno)
    return nodes.Call(function, [argument], [], None, None, lineno=at.lineno)
