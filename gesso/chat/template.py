"""Render chat templates, which come with downloaded checkpoints, in a sandbox that limits their work.

Templates receive plain data and render as in `transformers`. jinja2's sandbox keeps a template from reaching the
interpreter, but not from looping for hours or allocating terabytes. So each compilation and each rendering has a budget
(`template_budget`), which is enforced without signals or threads:

- The compiler inserts a counter at the start of every loop, macro and block.
- A template can use the filters, tests, methods and functions of `template_costs` only. The cost of each is checked and
  charged before it runs, and its result afterwards.
- No string or list may exceed MAX_CHARS. So each operation is short, and the clock is read between operations.
- All results that the template holds at one time are limited, too.
- jinja2 evaluates constants while it compiles, under the budget of the compilation.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

from jinja2 import Environment, TemplateError, nodes
from jinja2.compiler import CodeGenerator
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.lexer import Token, TokenStream
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import SandboxedEnvironment
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from gesso.chat import template_budget
from gesso.chat.template_budget import (
    WORK_LIMITS,
    Runaway,
    WorkLimits,
    as_list,
    charge,
    check_size,
    concatenated,
    limited,
    size,
    spend,
)
from gesso.chat.template_costs import CONSUMING, FILTERS, GLOBALS, OPERATORS, TESTS, Cost, check_time_format, methods_of

FOR_LEVELS = 20  # of nested loops, as many as Python allows
_SCOPES = ("_loop_vars", "_block_vars")  # that jinja2 adds to the arguments of a call


def compiled(source: str, limits: WorkLimits = WORK_LIMITS) -> Any:
    """Return a template to render, with the environment of `transformers`. Compiling has its own budget."""
    with limited(limits):
        return environment().from_string(source)


def render(template: Any, variables: Mapping[str, Any], limits: WorkLimits = WORK_LIMITS) -> str:
    """Render a template with its own budget."""
    parts: list[str] = []
    total = 0
    with limited(limits):
        for part in template.generate(variables):
            parts.append(part)
            total = check_size(total + len(part))
    return "".join(parts)


def environment() -> Environment:
    """Return the environment in which `transformers` renders templates, with limits."""
    env = _LimitedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation, _CountTokens], finalize=charge
    )
    functions = env.globals | {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    env.globals = {name: functions[name] for name in GLOBALS}
    filters = JINJA_FILTERS | {"tojson": _tojson}
    env.filters = {name: _limited_filter(name, filters[name], cost) for name, cost in FILTERS.items()}
    tests: dict[str, Any] = dict(JINJA_TESTS)
    env.tests = {name: _limited_test(tests[name], cost) for name, cost in TESTS.items()}
    return env


def _limited_test(test: Callable[..., Any], cost: Cost) -> Callable[..., Any]:
    skip = _context_arguments(test)

    @wraps(test)
    def checked(*arguments: Any, **options: Any) -> Any:
        spend(cost(*arguments[skip:], **options))
        return test(*arguments, **options)

    return checked


def _limited_filter(name: str, filter: Callable[..., Any], cost: Cost) -> Callable[..., Any]:
    skip = _context_arguments(filter)

    @wraps(filter)
    def checked(*arguments: Any, **options: Any) -> Any:
        context, given = arguments[:skip], list(arguments[skip:])
        if given and name in CONSUMING:
            given[0] = as_list(given[0])
        spend(cost(*given, **options), steps=0)
        return charge(filter(*context, *given, **options))

    return checked


def _context_arguments(function: Callable[..., Any]) -> int:
    """Return how many arguments jinja2 passes before those of the template: a context or the environment, or none."""
    return 1 if hasattr(function, "jinja_pass_arg") else 0


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    check_time_format(form)
    return datetime.now().strftime(form)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


# --- jinja2 -------------------------------------------------------------------------------------------------------


class _Generation(Extension):
    """Render the body of `{% generation %}`, which marks the part to train on."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _CountTokens(Extension):
    """Limit the length of a template by its tokens: compiling takes 0.1 ms and 3 kB for each."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        for count, token in enumerate(stream):
            if count > template_budget.MAX_TOKENS:
                raise Runaway(f"it has more than {template_budget.MAX_TOKENS:,} tokens")
            if token.type == "integer":
                size(token.value)
            spend(0)
            yield token


class _LimitedGenerator(CodeGenerator):
    """Generate Python code under the clock of the compilation's budget."""

    def visit(self, node: nodes.Node, *arguments: Any, **options: Any) -> Any:
        spend(0)
        return super().visit(node, *arguments, **options)


class _LimitedEnvironment(SandboxedEnvironment):
    code_generator_class = _LimitedGenerator
    concat = staticmethod(concatenated)
    intercepted_binops = frozenset(OPERATORS)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _InsertCounters().visit(tree)
        tree.set_environment(self)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if attr.startswith("_"):
            return False
        return isinstance(obj, Namespace) or attr in methods_of(obj)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        if attribute.startswith("_"):
            return super().unsafe_undefined(obj, attribute)
        problem = f"{attribute} of a {type(obj).__name__} is not available in chat templates"
        return self.undefined(problem, obj=obj, name=attribute, exc=Runaway)

    def tick(self, characters: int) -> bool:
        """Count one iteration of a body with this number of literal characters."""
        spend(characters)
        return True

    def charge(self, value: Any) -> Any:
        return charge(value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        spend(OPERATORS[operator](left, right), steps=0)
        return charge(self.binop_table[operator](left, right))

    def call(self, context: Context, callable: Any, /, *arguments: Any, **options: Any) -> Any:
        if getattr(callable, "__func__", None) in (_LimitedEnvironment.tick, _LimitedEnvironment.charge):
            return callable(*arguments)
        method = getattr(callable, "__wrapped__", callable)  # the sandbox wraps str.format
        receiver = getattr(method, "__self__", None)
        if isinstance(receiver, str | int | float | list | tuple | dict):
            name = method.__name__
            if name not in methods_of(receiver):
                raise Runaway(f"{name} of a {type(receiver).__name__} is not available in chat templates")
            if name == "join":
                arguments = tuple(map(as_list, arguments))
            given = {key: value for key, value in options.items() if key not in _SCOPES}
            spend(methods_of(receiver)[name](receiver, *arguments, **given), steps=0)
        return charge(super().call(context, callable, *arguments, **options))


class _InsertCounters(NodeTransformer):
    """Insert calls of `tick` and `charge` into a template."""

    def __init__(self) -> None:
        self.literal = 0  # characters of the loop, macro or block that is visited, without those of inner ones
        self.loops = 0

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.TemplateData:
        self.literal += len(node.data)
        return node

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.loops += 1
        if self.loops > FOR_LEVELS:
            raise Runaway(f"it nests more than {FOR_LEVELS} loops")
        self._count(node)
        self.loops -= 1
        if node.test is not None:
            node.test = nodes.And(_call("tick", nodes.Const(0), node), node.test, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        """Join with the filter `join`: the list of the parts is charged before their text is created."""
        self.generic_visit(node)
        parts = _call("charge", nodes.List(node.nodes, lineno=node.lineno), node)
        return nodes.Filter(parts, "join", [], [], None, None, lineno=node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        """Charge slices, which are copies. jinja2 takes them without asking its environment."""
        self.generic_visit(node)
        return _call("charge", node, node) if isinstance(node.arg, nodes.Slice) else node

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
        outer, self.literal = self.literal, 0
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("tick", nodes.Const(self.literal), node), lineno=node.lineno))
        self.literal = outer
        return node

    visit_Macro = visit_CallBlock = visit_Block = _count


def _call(name: str, argument: nodes.Expr, at: nodes.Node) -> nodes.Call:
    function = nodes.EnvironmentAttribute(name, lineno=at.lineno)
    return nodes.Call(function, [argument], [], None, None, lineno=at.lineno)
