"""Chat templates: each rendering has limits, and normal templates render as in jinja2."""

import itertools
import json
import threading
import time
import tracemalloc
from pathlib import Path

import pytest
from jinja2 import TemplateError, TemplateSyntaxError, UndefinedError
from jinja2.defaults import DEFAULT_FILTERS, DEFAULT_NAMESPACE, DEFAULT_TESTS
from markupsafe import Markup

from gesso.chat import template, template_costs
from gesso.chat.template_budget import MAX_CHARS, WORK_LIMITS, Runaway, WorkLimits
from gesso.chat.tokenizer import Tokenizer
from gesso.errors import CheckpointError, InputError
from tests.tiny import tokenizer_json
from tests.waiting import PATIENCE, bounded

RUNAWAY = {
    "long range": "{% for i in range(10**12) %}x{% endfor %}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "silent nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loop filter": "{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}",
    "recursive loop": "{% for x in [1, 2] recursive %}{{ loop([1, 2]) if loop.depth < 60 }}{% endfor %}",
    "recursive macro": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "times": "{{ 'x' * 10**10 }}",
    "list times": "{{ ([1] * 10**10)|length }}",
    "power": "{{ 10**(10**10) }}",
    "squares": "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "plus": "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "tilde": "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "set block": "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}"
    "{% endset %}{% endfor %}",
    "list of lists": "{% set ns = namespace(x=[]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
    "{{ ns.x }}",
    "dict of dicts": "{% set ns = namespace(x={}) %}{% for i in range(60) %}{% set ns.x = {1: ns.x, 2: ns.x} %}"
    "{% endfor %}{{ ns.x|tojson }}",
    "dict of keywords": "{% set ns = namespace(x={}) %}{% for i in range(60) %}{% set ns.x = dict(a=ns.x, b=ns.x) %}"
    "{% endfor %}{{ ns.x == ns.x.copy() }}",
    "namespaces": "{% set ns = namespace(x=1) %}{% for i in range(60) %}{% set ns.x = namespace(a=ns.x, b=ns.x) %}"
    "{% endfor %}{{ ns.x }}",
    "center": "{{ 'x'|center(10**10) }}",
    "ljust": "{{ 'x'.ljust(10**10) }}",
    "zfill": "{{ 'x'.zfill(10**10) }}",
    "indent": "{{ ('x\\n' * 10**5)|indent(10**6) }}",
    "replace": "{{ ('x' * 10**6).replace('x', 'x' * 10**6) }}",
    "replace filter": "{{ ('x' * 10**6)|replace('x', 'x' * 10**6) }}",
    "join": "{{ ('x' * 10**6).join(range(10**5)|map('string')) }}",
    "join filter": "{{ range(10**5)|join('x' * 10**6) }}",
    "join of a default": "{{ range(10**5)|map(attribute='no', default='x' * 10**6)|join }}",
    "format": "{{ '{:10000000000}'.format(1) }}",
    "format with a nested width": "{{ '{:{}}'.format(1, 10**10) }}",
    "percent": "{{ '%10000000000d' % 1 }}",
    "percent with a star": "{{ '%*d' % (10**10, 1) }}",
    "format filter": "{{ '%10000000000d'|format(1) }}",
    "round": "{{ 1.5|round(10**9, 'ceil') }}",
    "to_bytes": "{{ (5).to_bytes(10**10, 'big') }}",
    "translate": "{{ 'xxx'.translate({120: 'x' * 10**6}) }}",
    "sum of lists": "{% set ones = [[1]] * 50000 %}{{ ones|sum(start=[])|length }}",
    "slice": "{{ [1]|slice(10**10)|list }}",
    "batch": "{{ [1]|batch(10**10, 'x')|list }}",
    "tojson": "{{ [1]|tojson(indent=10**10) }}",
    "lipsum": "{{ lipsum(n=10**8) }}",  # removed: it is undefined
    "round to a negative precision": "{{ x|default(1)|round(-10**9) }}",
    "round a text": "{{ 'x'|round(9, 'ceil') }}",
    "title": "{{ ('a ' * 4000000)|title }}",
    "encode": "{{ ('ä' * 10**6).encode('idna') }}",
    "split at spaces": "{{ ('ab ' * 10**6).split() }}",
    "strip of many characters": "{{ ('b' * 10**6).strip('a' * 10**6 ~ 'b') }}",
    "search from the right": "{{ ('a' * 4000000).rfind('ab' ~ 'a' * 2000000) }}",
    "split from the right": "{{ ('a' * 4000000).rsplit('ab' ~ 'a' * 2000000) }}",
    "odd text": "{{ '%9999999999d' is odd }}",
    "divisible text": "{{ '%9999999999d' is divisibleby(7) }}",
    "replace with swapped keywords": "{{ ('x' * 10**6)|replace(new='x' * 10**6, old='x') }}",
    "attribute of many parts": "{{ ([1] * 10**5)|sort(attribute='a,' * 10**5) }}",
    "lazy filters in a filter": "{{ range(99999)" + "|map('string')" * 60 + "|max }}",
    "tojson of a deep list": "{% set ns = namespace(x=[1] * 3000) %}{% for i in range(100) %}{% set ns.x = [ns.x, 1] %}"
    "{% endfor %}{{ [ns.x, ns.x, ns.x, ns.x]|tojson(indent=16) }}",
    "lazy filter over a long text": "{{ ('a' * 8000000)|selectattr(10**9)|list }}",
    "time format": "{{ strftime_now('%c' * 10**6) }}",
    "number of many digits": "{{ ('f' * 10**6)|int(base=16) }}",
    "printed blocks": "{% set x = 'x' * 4000000 %}" + "{{ x }}" * 9,
}
# What these cost is spent while the template is compiled.
RUNAWAY_CONSTANTS = {
    "round": "{{ 1|round(-1000000000) }}",
    "odd": "{{ '%9999999999d' is odd }}",
    "long integer": "{{ 0x" + "f" * 600_000 + " // 0x" + "e" * 300_000 + " }}",
    "many tokens": "{{ x }}" * 100_000,
    "many constants": "{{ 'a'|upper }}" * 60_000,
    "nested loops": "{% for a in b %}" * 50 + "{% endfor %}" * 50,
}
# Below the default limit, to be reached in a tenth of the time, and never by time, even on a busy machine.
FEW_STEPS = WorkLimits(steps=100_000, seconds=PATIENCE)
UNTIMED = WorkLimits(seconds=PATIENCE)
CHAT = [{"role": "user", "content": "Hello"}]


def with_template(directory: Path, source: str) -> Tokenizer:
    (directory / "tokenizer.json").write_text(tokenizer_json())
    (directory / "chat_template.jinja").write_text(source)
    return Tokenizer.from_directory(directory)


def rendered(source, limits=WORK_LIMITS, **variables):
    return template.render(template.compiled(source, limits), variables, limits)


@pytest.mark.parametrize("case", RUNAWAY)
def test_runaway_template_is_stopped(case):
    with bounded(), pytest.raises((Runaway, UndefinedError, OverflowError)):
        rendered(RUNAWAY[case], limits=FEW_STEPS)


@pytest.mark.parametrize("case", RUNAWAY_CONSTANTS)
def test_runaway_constant_is_stopped_while_it_is_compiled_or_rendered(case):
    with bounded(), pytest.raises(Runaway):
        rendered(RUNAWAY_CONSTANTS[case], limits=UNTIMED)


def test_stopped_rendering_is_an_input_error_and_stopped_compilation_a_checkpoint_error(tmp_path):
    with pytest.raises(InputError, match="the chat template was stopped: .* shorten the conversation"):
        with_template(tmp_path, RUNAWAY["times"]).render(CHAT)
    with pytest.raises(CheckpointError, match="chat_template.jinja: .* was stopped while it was compiled"):
        with_template(tmp_path, RUNAWAY_CONSTANTS["long integer"]).render(CHAT)


def test_compiling_has_a_time_limit():
    with pytest.raises(Runaway, match="more than 0 s of processor time"):
        template.compiled("{{ messages }}", WorkLimits(seconds=0.0))


def test_runaway_template_is_stopped_in_another_thread():
    caught = []

    def render() -> None:
        try:
            rendered(RUNAWAY["silent nested loops"], limits=FEW_STEPS)
        except Runaway as error:
            caught.append(error)

    thread = threading.Thread(target=render)
    thread.start()
    thread.join(PATIENCE)
    assert "steps" in str(caught[0])


def test_template_is_stopped_by_time_limit():
    loops = template.compiled(RUNAWAY["silent nested loops"])
    with pytest.raises(Runaway, match=r"more than 0\.05 s of processor time"):
        template.render(loops, {}, WorkLimits(seconds=0.05, steps=10**12))


def test_only_processor_time_counts():
    """So a template that renders on an idle machine renders on a busy one."""
    slow = (time.sleep(0.05) or number for number in range(5))
    assert rendered("{% for number in slow %}{{ number }}{% endfor %}", WorkLimits(seconds=0.2), slow=slow) == "01234"


def test_each_rendering_has_its_own_budget():
    loop = template.compiled("{% for i in range(99999) %}{% endfor %}{{ text }}")
    for _ in range(3):
        assert template.render(loop, {"text": "Hello"}, WorkLimits(steps=150_000)) == "Hello"


@pytest.mark.parametrize("source", ["(" * 10_000, "{% if x %}" * 500 + "{% endif %}" * 500, "{% for x in y %}" * 30])
def test_template_nested_too_deeply_is_checkpoint_error(tmp_path, source):
    source = "{{ " + source + "1" + ")" * 10_000 + " }}" if source.startswith("(") else source
    if source.startswith("{% for"):
        source += "{% endfor %}" * 30
    with pytest.raises(CheckpointError, match="chat_template.jinja"):
        with_template(tmp_path, source).render(CHAT)


def test_common_operations_render_as_in_jinja2(tmp_path):
    """Compare with jinja2's own sandbox, which `transformers` uses."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    source = """
    {%- set ns = namespace(text='', seen=[]) -%}
    {%- macro show(name, values) -%}
        {{ name ~ ': ' ~ values|join(', ') }}{{ caller() if caller else '' }}
    {%- endmacro -%}
    {%- for message in messages if message.role != 'system' -%}
        {%- set ns.text = ns.text + message.content[:3]|trim|upper -%}
        {%- set ns.seen = ns.seen + [loop.index, loop.last, loop.length] -%}
        {{- show(message.role, [message.content, 2 ** 3, 7 % 4, 3 * 'ab', '%s-%03d' % ('x', 7), -1]) -}}
    {%- else -%}none{%- endfor -%}
    {%- call show('call', ('a', 'b')) -%}body{%- endcall -%}
    {{ ns.text }} {{ ns.seen }} {{ {'a': [1, {'b': none}]} }} {{ '{} {:>5}'.format('a', 'b') }}
    {{ ' a b '.strip().split(' ')|map('upper')|list }} {{ [3, 1, 2]|sort|join('-') }} {{ 'x'|center(5) }}
    {{ 'a\\nb'|indent(2) }} {{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|list }}
    {{ [1, 2, 3]|sum }} {{ 2.567|round(1) }} {{ 'abab'.replace('a', 'c')|replace('b', '') }}
    {{ undefined|default('d') }} {{ 'a' 'b' }}
    {{ [1, 2, 3, 4]|batch(2)|list }} {{ dict(a=1, b=2)|dictsort }} {{ 'a' in ['a', 'b'] }} {{ ', '.join(['x', 'y']) }}
    {%- for x in [1, [2, [3]]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}
    {%- block last %}{{ messages[-1]['content'] }}{% endblock %}
    """
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    chat = [{"role": "user", "content": " hello"}, {"role": "assistant", "content": "bye {x} 100%"}]
    expected = plain.from_string(source).render(messages=chat)
    assert template.render(template.compiled(source), {"messages": chat}) == expected


def test_long_conversation_renders_within_budget(tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    chat = [{"role": role, "content": "word " * 200} for _ in range(1000) for role in ("user", "assistant")]
    assert Tokenizer.from_directory(tmp_path).render(chat).count("word") == 400_000


# Published templates do this: with a list of tools, and with all messages before each one.
APPENDED = (
    "{% set ns = namespace(text='') %}{% for x in parts %}{% set ns.text = ns.text + x %}{% endfor %}{{ ns.text }}"
)
LOOKING_BACK = "{% for i in range(1450) %}{% for j in range(i, -1, -1) %}{% endfor %}{% endfor %}end"


def test_a_text_of_many_parts_renders_within_budget():
    parts = ["x" * 2_000] * 400
    assert rendered(APPENDED, parts=parts) == "".join(parts)


def test_a_conversation_of_many_messages_renders_within_budget():
    assert rendered(LOOKING_BACK, UNTIMED) == "end"


HELD = {
    "slices": "{%% set a%d = text[%d:] %%}",
    "sums": "{%% set a%d = text + '%d' %%}",
    "blocks": "{%% set a%d %%}{{ text }}%d{%% endset %%}",
    "calls": "{%% set a%d = text.replace('y', '%d') ~ 'z' %%}",
    "lists": "{%% set a%d = [text[1:], %d] %%}",
}


@pytest.mark.parametrize("kind", HELD)
def test_results_that_are_held_at_one_time_are_limited(kind):
    hostile = template.compiled("".join(HELD[kind] % (number, number) for number in range(100)))
    text = "x" * 100_000
    tracemalloc.start()
    try:
        with pytest.raises(Runaway, match="it holds texts and lists of more than 1,000,000 characters at one time"):
            template.render(hostile, {"text": text}, WorkLimits(held=1_000_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000


def test_results_that_were_dropped_are_not_held():
    text = "x" * 100_000
    replaced = "{% set ns = namespace() %}{% for _ in range(100) %}{% set ns.text = text[1:] %}{% endfor %}end"
    assert rendered(replaced, WorkLimits(held=1_000_000), text=text) == "end"


# --- every operation has a cost ---------------------------------------------------------------------------------------

# Every filter and test of jinja2 3.1 without a cost.
UNAVAILABLE_FILTERS = {"filesizeformat", "pprint", "striptags", "urlize", "wordwrap", "xmlattr"}
VALUES = {str: "text", int: 7, float: 1.5, list: [1], tuple: (1,), dict: {"a": 1}, bool: True, Markup: Markup("text")}


@pytest.mark.parametrize("kind", VALUES)
def test_method_without_a_cost_is_unavailable(kind):
    """All methods that this Python has, so that a method that a later version adds is covered, too."""
    for name in (name for name in dir(kind) if not name.startswith("_")):
        if name not in template_costs.methods_of(VALUES[kind]):
            with pytest.raises(TemplateError, match=f"{name}.* is not available in chat templates"):
                rendered(f"{{{{ value.{name}() }}}}", value=VALUES[kind])
            with pytest.raises(TemplateError, match="is not available"):
                rendered("{{ (value|attr(name))() }}", value=VALUES[kind], name=name)


def test_methods_with_a_cost_exist_and_are_called():
    names = {"isspace", "bit_length", "hex", "copy", "items"}
    for kind, value in VALUES.items():
        for name in template_costs.methods_of(value):
            assert hasattr(kind, name) or name == "is_integer", (kind, name)
            if name in names:
                assert rendered(f"{{{{ value.{name}() }}}}", value=value)


@pytest.mark.parametrize("name", ["encode", "translate", "format_map", "append", "update", "to_bytes", "fromhex"])
def test_costly_and_changing_methods_have_no_cost(name):
    assert not any(name in table for table in template_costs.METHODS.values())


def test_filter_without_a_cost_is_unavailable():
    environment = template.environment()
    for name in set(DEFAULT_FILTERS) - set(template_costs.FILTERS):
        with pytest.raises(TemplateSyntaxError, match=f"No filter named '{name}'"):
            template.compiled(f"{{{{ 'x'|{name} }}}}")
    assert set(environment.filters) == set(template_costs.FILTERS)
    assert set(DEFAULT_FILTERS) - set(template_costs.FILTERS) >= UNAVAILABLE_FILTERS


def test_test_without_a_cost_is_unavailable():
    assert set(template.environment().tests) == set(template_costs.TESTS)


def test_function_without_a_cost_is_unavailable():
    assert set(template.environment().globals) == template_costs.GLOBALS
    with pytest.raises(UndefinedError):
        rendered("{{ lipsum() }}")


def test_operation_that_jinja2_adds_is_unavailable_until_it_has_a_cost(monkeypatch):
    monkeypatch.setitem(DEFAULT_FILTERS, "added", str)
    monkeypatch.setitem(DEFAULT_TESTS, "added", bool)
    monkeypatch.setitem(DEFAULT_NAMESPACE, "added", str)
    for source, problem in (
        ("{{ 1|added }}", "No filter named"), ("{{ 1 is added }}", "No test named"), ("{{ added(1) }}", "undefined"),
    ):  # fmt: skip
        with pytest.raises(TemplateError, match=problem):
            rendered(source)


def test_a_text_times_a_number_costs_its_length():
    """Otherwise the hostile templates above would be stopped before the operation that they are about."""
    for times in (8_000_000, -1, True):
        source = "{{ ('x' * times)|length }}{{ (times * [])|length }}"
        assert rendered(source, times=times) == f"{max(0, int(times))}0"


def test_no_operation_gives_work_back():
    costs = [*template_costs.FILTERS.values(), *template_costs.TESTS.values(), *template_costs.OPERATORS.values()]
    costs += [cost for table in template_costs.METHODS.values() for cost in table.values()]
    values = ("text", "", [1], {"a": 1}, 7, -7, 1.5, None)
    hostile = (10**9, -(10**9), -1.5, "x", "", [], True, None)
    called = 0
    for cost, value, count in itertools.product(dict.fromkeys(costs), values, range(3)):
        for arguments in itertools.product(hostile, repeat=count):
            try:
                work = cost(value, *arguments)
            except (Runaway, TypeError, AttributeError):  # stopped, or as the operation itself fails
                continue
            called += 1
            assert work >= 0, (cost.__name__, value, arguments)
    assert called > 5_000


def test_every_operator_has_a_cost():
    from jinja2.sandbox import SandboxedEnvironment

    assert set(template_costs.OPERATORS) == set(SandboxedEnvironment.default_binop_table)


def test_lazy_elements_are_counted():
    with pytest.raises(Runaway, match="steps"):
        rendered("{{ range(99999)|map('string')|first in range(99999)|map('default') }}", WorkLimits(steps=50_000))


def test_filters_and_methods_of_published_templates_render_as_in_jinja2():
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    source = """
    {%- for key, value in arguments|dictsort %}{{ key|title }}={{ value|tojson|safe }};{% endfor -%}
    {%- for key, value in arguments.items() %}{{ loop.index }}/{{ loop.length }}{{ loop.cycle('a', 'b') }}{% endfor %}
    {{ text.split('</think>')[-1].lstrip('\n').rstrip() }} {{ text.rsplit('>', 1)[0] }} {{ text.splitlines() }}
    {{ 'think' in text }} {{ text.startswith(('a', '<think>')) }} {{ text.find('x') }} {{ text.title()|length }}
    {{ messages|map(attribute='role')|unique|list }} {{ messages|groupby('role')|map(attribute='grouper')|list }}
    {{ messages|rejectattr('role', 'in', ['user', 'tool'])|list }} {{ messages[::-1]|first }} {{ (messages|last).role }}
    {{ messages|selectattr('content', 'defined')|list|length }} {{ arguments.get('none', {}).keys()|list }}
    {{ text|replace(new='-', old='<') }} {{ text|escape }} {{ ('<b>'|safe) ~ text|e }} {{ ['a', 'b']|reverse|join }}
    {{ [1, 2]|tojson == '[1, 2]' }} {{ 7 is odd }} {{ 9 is divisibleby 3 }} {{ 2.5|round|int }} {{ 1234|round(-2) }}
    {{ '%s: %d'|format('a', 3) }} {{ ('%(a)s' % {'a': 'b'}) }} {{ 17 // 5 - 1 }} {{ 'abc'|batch(2)|list }} {{ -7|abs }}
    {{ text is string and messages is sequence and arguments is mapping }} {{ text.strip().upper().partition('X') }}
    {% set next = joiner('|') %}{% for i in 'ab' %}{{ next() }}{{ i }}{% endfor %} {{ 'a,b,c'.rsplit(',', 1) }}
    """
    variables = {
        "text": "<think>\nso & so</think>\n\nText x",
        "messages": [{"role": "user", "content": "a"}, {"role": "tool"}, {"role": "user", "content": "b"}],
        "arguments": {"b": [1, "ü"], "a": None},
    }
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    plain.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    assert rendered(source, **variables) == plain.from_string(source).render(variables)


@pytest.mark.parametrize(("text", "ensure_ascii"), [("\0", False), ("\U0001f600", True)])
def test_json_is_refused_before_its_escapes_exceed_the_limit(text, ensure_ascii):
    fitting = text * 1000
    assert template_costs.to_json(fitting, ensure_ascii=ensure_ascii) >= len(json.dumps(fitting)) - 2
    with pytest.raises(Runaway):
        template_costs.to_json(text * (MAX_CHARS // 6 + 1), ensure_ascii=ensure_ascii)


TOO_LARGE = {
    "concatenated": "{{ (v ~ v ~ v ~ v ~ v ~ v ~ v)|length }}",
    "set block": "{% set b %}{% for _ in range(7) %}{{ v }}{% endfor %}{% endset %}{{ b|length }}",
    "macro": "{% macro m() %}{% for _ in range(7) %}{{ v }}{% endfor %}{% endmacro %}{{ m()|length }}",
    "call block": "{% macro m() %}{{ caller()|length }}{% endmacro %}{% call m() %}{{ v }}{{ v }}{{ v }}{% endcall %}",
    "filter block": "{% filter length %}{{ v }}{{ v }}{{ v }}{{ v }}{{ v }}{% endfilter %}",
    "escaped": "{{ quotes|e|length }}",
    "escaped again": "{{ quotes|forceescape|length }}",
    "added to markup": "{{ (''|safe + quotes)|length }}",
    "upper": "{{ accents|upper|length }}",
    "upper, as a method": "{{ accents.upper()|length }}",
    "title": "{{ accents.title()|length }}",
    "list as text": "{{ [controls]|string|length }}",
}


@pytest.mark.parametrize("source", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_text_that_would_be_too_large_is_not_created(source):
    """Nothing larger than one text of the greatest length, of four bytes per character, is in memory meanwhile."""
    variables = {
        "v": "\U0001f600" * (MAX_CHARS - 1000),
        "quotes": "'" * MAX_CHARS,
        "accents": "\u0390" * MAX_CHARS,  # three characters in upper case
        "controls": "\0" * (MAX_CHARS - 1000),
    }
    hostile = template.compiled(source)
    tracemalloc.start()
    try:
        with pytest.raises(Runaway):
            template.render(hostile, variables)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_parts_of_a_text_are_joined_as_jinja2_does():
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    source = "{% set b %}{{ 1 ~ x ~ [2] ~ none }}{% endset %}{{ b ~ ('<'|safe) ~ '<' }}{{ undefined ~ 'a' }}"
    plain = ImmutableSandboxedEnvironment()
    assert rendered(source, x="y") == plain.from_string(source).render(x="y") == "1y[2]None<<a"
