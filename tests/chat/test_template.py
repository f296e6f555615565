"""Chat templates: each rendering has limits, and normal templates render as in jinja2."""

import threading
from pathlib import Path

import pytest

from gesso.chat import template
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
    "sum of lists": "{% set one = [[1]] * 300000 %}{{ one|sum(start=[])|length }}",
    "slice": "{{ [1]|slice(10**10)|list }}",
    "batch": "{{ [1]|batch(10**10, 'x')|list }}",
    "tojson": "{{ [1]|tojson(indent=10**10) }}",
    "lipsum": "{{ lipsum(n=10**8) }}",  # removed: it is undefined
}
CHAT = [{"role": "user", "content": "Hello"}]


def with_template(directory: Path, source: str) -> Tokenizer:
    (directory / "tokenizer.json").write_text(tokenizer_json())
    (directory / "chat_template.jinja").write_text(source)
    return Tokenizer.from_directory(directory)


@pytest.mark.parametrize("case", RUNAWAY)
def test_runaway_template_is_stopped(tmp_path, case, monkeypatch):
    monkeypatch.setattr(template, "MAX_STEPS", template.MAX_STEPS // 10)  # a tenth of the time
    monkeypatch.setattr(template, "MAX_SECONDS", PATIENCE)  # the other limits come first, even on a busy machine
    tokenizer = with_template(tmp_path, RUNAWAY[case])
    with bounded(), pytest.raises((InputError, CheckpointError), match="template was stopped|undefined|Range too big"):
        tokenizer.render(CHAT)


def test_runaway_template_is_stopped_in_another_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(template, "MAX_STEPS", template.MAX_STEPS // 10)
    monkeypatch.setattr(template, "MAX_SECONDS", 60)  # the limit on steps comes first, even on a busy machine
    tokenizer, caught = with_template(tmp_path, RUNAWAY["silent nested loops"]), []

    def render() -> None:
        try:
            tokenizer.render(CHAT)
        except InputError as error:
            caught.append(error)

    thread = threading.Thread(target=render)
    thread.start()
    thread.join(PATIENCE)
    assert "steps" in str(caught[0])


def test_template_is_stopped_by_time_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(template, "MAX_SECONDS", 0.05)
    monkeypatch.setattr(template, "MAX_STEPS", 10**12)
    with pytest.raises(InputError, match=r"longer than 0\.05 s"):
        with_template(tmp_path, RUNAWAY["silent nested loops"]).render(CHAT)


def test_each_rendering_has_its_own_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(template, "MAX_STEPS", 150_000)
    tokenizer = with_template(tmp_path, "{% for i in range(99999) %}{% endfor %}{{ messages[0].content }}")
    for _ in range(3):
        assert tokenizer.render(CHAT) == "Hello"


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
    assert template.render(template.environment().from_string(source), {"messages": chat}) == expected


def test_long_conversation_renders_within_budget(tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    chat = [{"role": role, "content": "word " * 200} for _ in range(1000) for role in ("user", "assistant")]
    assert Tokenizer.from_directory(tmp_path).render(chat).count("word") == 400_000
