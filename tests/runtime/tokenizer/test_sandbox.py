"""Hostile templates: each is stopped by a limit before it has what it asks for, and published ones render as before."""

from __future__ import annotations

import subprocess
import sys
import time

import jinja2
import pytest

from bough.runtime.protocol.errors import ModelError, RequestError
from bough.runtime.tokenizer import sandbox
from bough.runtime.tokenizer.chat_template import ChatTemplate
from bough.runtime.tokenizer.sandbox import BoundedEnvironment, TemplateBudget, with_budget

HI = [{"role": "user", "content": "hi"}]

_GROW = "{% set ns = namespace(x=START) %}{% for i in range(100) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"


def grow(start: str, step: str) -> str:
    """A template that makes a value of the one before it, a hundred times."""
    return _GROW.replace("START", start).replace("STEP", step)


TOO_LARGE = {
    "text times number": "{{ 'a' * 10 ** 10 }}",
    "list times number": "{{ [1] * 10 ** 10 }}",
    "number times text": "{{ 10 ** 10 * 'a' }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "squares": grow("3", "ns.x * ns.x"),
    "doubled text": grow("'a'", "ns.x + ns.x"),
    "joined text": grow("'a'", "ns.x ~ ns.x"),
    "doubled list": grow("[1]", "ns.x + ns.x"),
    "lists of one list": grow("[1]", "[ns.x, ns.x]"),
    "tuples of one tuple": grow("(1,)", "(ns.x, ns.x)"),
    "objects of one object": grow("{'a': 1}", "{'a': ns.x, 'b': ns.x}"),
    "equal lists of lists": "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(100) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    "kept texts": grow("[]", "ns.x + ['a' * 999999]"),
    "kept slices": "{% set s = 'a' * 16000000 %}" + "".join(f"{{% set t{i} = s[1:] %}}" for i in range(100)),
    "wide": "{{ 'a'.ljust(10 ** 10) }}",
    "wide by attr": "{{ ('a' | attr('rjust'))(10 ** 10) }}",
    "centred": "{{ 'a' | center(10 ** 10) }}",
    "a centred block": "{% filter center(10 ** 10) %}x{% endfilter %}",
    "many centred": "{{ range(99999) | map('center', 99999) | list | length }}",
    "zeros": "{{ 'a'.zfill(10 ** 10) }}",
    "tabs": "{{ ('\\t' * 10000).expandtabs(10 ** 7) }}",
    "indented": "{{ ('a\\n' * 10000) | indent(10 ** 7) }}",
    "indented by text": "{{ ('a\\n' * 10000) | indent('x' * 99999) }}",
    "indented JSON": "{{ [[1]] | tojson(indent=10 ** 9) }}",
    "separated JSON": "{{ [1, 2] | tojson(separators=('x' * 9999, ':')) }}",
    "format": "{{ '{:1000000000}'.format(1) }}",
    "a width of wide digits": "{{ '{:>\uff19\uff19\uff19\uff19\uff19\uff19\uff19}'.format(1) | length }}",
    "a precision of Arabic digits": "{{ '{0:.\u0669\u0669\u0669\u0669\u0669\u0669\u0669f}'.format(1) | length }}",
    "format of a map": "{{ '{x:999999999}'.format_map({'x': 1}) }}",
    "format by another field": "{{ '{:{}}'.format(1, 10 ** 9) }}",
    "many fields": "{{ ('{0}' * 99999).format('a' * 9999999) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "percent with a star": "{{ '%*d' % (10 ** 9, 1) }}",
    "percent with digits": "{{ '%.999999999f' % 1.0 }}",
    "percent by a filter": "{{ '%1000000000d' | format(1) }}",
    "replaced": "{{ ('a' * 999999).replace('a', 'b' * 999999) }}",
    "nothing replaced": "{{ ('a' * 999999).replace('', 'b' * 999999) }}",
    "replaced by a filter": "{{ ('a' * 999999) | replace('a', 'b' * 999999) }}",
    "translated": "{{ ('a' * 999999).translate({97: 'b' * 999999}) }}",
    "joined": "{{ range(99999) | join('a' * 999999) }}",
    "joined by a method": "{{ ('a' * 999999).join(['a'] * 99999) }}",
    "joined one by one": "{{ ('a' * 999999).join(range(9999) | map('string')) }}",
    "batch": "{{ [1] | batch(10 ** 9, 'x') | list }}",
    "slices": "{{ [1] | slice(10 ** 9) | list }}",
    "digits": "{{ 1 | round(10 ** 8, 'ceil') }}",
    "words": "{{ ('a ' * 8000000).split() | length }}",
    "characters": "{{ ('a' * 16000000) | list | length }}",
    "characters one by one": "{{ ('a' * 16000000) | batch(1) | list | length }}",
    "titles": "{{ ('a ' * 8000000) | title | length }}",
    "sum of lists": "{{ ([[1] * 1000] * 1000) | sum(start=[]) | length }}",
    "tags": "{{ ('<!---->' * 999999) | striptags }}",
    "tags by a method": "{{ (('<!---->' * 999999) | safe).striptags() }}",
    "wrapped": "{{ ('a ' * 99999) | wordwrap(1) }}",
    "bytes of a number": "{{ (1).to_bytes(10 ** 10, 'big') }}",
    "dates": "{{ strftime_now('%Y' * 9999) }}",
    "hexadecimal digits": "{{ ('f' * 20000) | int(base=16) > 0 }}",
    "numbers of bytes": "{{ (1).from_bytes('ff'.encode() * 9999, 'big') > 0 }}",
    "numbers one by one": "{{ ['f' * 20000] | map('int', base=16) | list | length }}",
    "sum of numbers": "{% set x = ('f' * 16384) | int(base=16) %}{{ ([x] * 9) | sum > x }}",
    "numbers by subtraction": grow("('f' * 16380) | int(base=16)", "ns.x - -ns.x"),
    "all searched from the right": "{{ ('a' * 200000).rfind('ab' ~ 'a' * 100000) }}",
    "split from the right": "{{ ('a' * 200000).rsplit('ab' ~ 'a' * 100000) }}",
    "bytes cut from the right": "{{ ('a' * 200000).encode().rpartition(('ab' ~ 'a' * 100000).encode()) }}",
    "stripped of many": "{{ ('a' * 300000).strip('b' * 999999 ~ 'a') }}",
    "trimmed of many": "{{ ('a' * 300000) | trim('b' * 999999 ~ 'a') }}",
    "names of characters": "{{ ('\ufdfa' * 999999).encode('ascii', 'namereplace') }}",
    "a codec of domain names": "{{ 'a'.encode('punycode') }}",
    "a sort by many names": "{{ (['a'] * 4000) | sort(attribute='0.' * 30000 ~ '0') }}",
    "a sort of what comes one by one": "{{ (['a'] * 4000) | map('lower') | sort(attribute='0.' * 30000 ~ '0') }}",
    "many names": "{{ [{}] | sort(attribute='aa,' * 5000000) }}",
    "wrapped by text": "{{ ('a ' * 30000) | wordwrap(1, true, 'x' * 65000) | length }}",
    "links with text": "{{ ('www.a.de ' * 7000) | urlize(target='x' * 65000) | length }}",
    "a block's text": "{% set x %}{% for i in range(99999) %}" + "x" * 9999 + "{% endfor %}{% endset %}",
    "a macro's text": "{% macro m(n) %}{% if n %}" + "x" * 9999
    + "{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_LARGE)
def test_no_value_is_made_that_is_too_large(name: str) -> None:
    template = ChatTemplate(TOO_LARGE[name])
    began = time.thread_time()
    with pytest.raises(
        RequestError, match=r": it (makes|passes|searches)|: a (format|date|text)|: (round|sum|tojson|numbers) "
    ) as caught:
        template.render(HI)
    assert caught.value.param == "messages"
    assert time.thread_time() - began < sandbox.MAX_CPU_S


ENDLESS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "filtered loops": "{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}",
    "loops and lengths": "{% for i in range(99999) %}{% for j in range(99999) %}{{ loop.length }}"
    "{% endfor %}{% endfor %}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "calls": "{% macro m(n) %}{% if n %}{% call m(n - 1) %}{{ m(n - 1) }}{% endcall %}{{ caller() if caller }}"
    "{% endif %}{% endmacro %}{{ m(60) }}",
    "searches": "{% set s = 'a' * 16000000 %}" + "{% if 'b' in s %}{% endif %}" * 3000,
    "comparisons": "{% set s = 'a' * 16000000 %}{% set t = 'a' * 16000000 %}" + "{% if s == t %}{% endif %}" * 3000,
    "tests": "{% set s = 'a' * 16000000 %}" + "{% if 'b' is in s %}{% endif %}" * 3000,
    "counts": "{% set s = 'a' * 16000000 %}{% for i in range(99999) %}{% set n = s.count('b') %}{% endfor %}",
    "long chains": "{% set s = 'a' * 16000000 %}{% set t = 'a' * 16000000 %}{% if "
    + "s == t == " * 999 + "s %}{% endif %}",
    "long keys": "{% set t = (1,) * 700000 %}{% set d = {t: 1} %}" + "{% set x = d[t] %}" * 3000,
    "digits": "{% set x = ('1 ' * 8000000) % () %}",
    "keys that collide": "{% set p = 2 ** 61 - 1 %}{% set x = {}.fromkeys(range(0, 99999 * p, p)) %}",
    "attributes that collide": "{% set p = 2 ** 61 - 1 %}"
    "{% set x = namespace(range(0, 99999 * p, p) | batch(2) | list) %}",
    "pairs that collide": "{% set p = 2 ** 61 - 1 %}{% set x = dict(range(0, 99999 * p, p) | batch(2) | list) %}",
    "maps": "{% for i in range(99999) %}{% set n = range(99999) | map('abs') | sum %}{% endfor %}",
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_no_rendering_lasts_too_long(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate(ENDLESS[name])
    monkeypatch.setattr(sandbox, "MAX_CPU_S", 0.2)
    began = time.thread_time()
    with pytest.raises(RequestError, match=r"takes more than 0[.]2 s of processor time"):
        template.render(HI)
    assert time.thread_time() - began < 2.0


def test_what_a_format_would_make_is_found_in_linear_time() -> None:
    template = ChatTemplate("{{ ('{' ~ ':' * 200000).format(1) }}")
    began = time.thread_time()
    with pytest.raises(RequestError, match="unmatched"):
        template.render(HI)
    assert time.thread_time() - began < 1.0


NUMBERS = {
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 4 }} {{ 7 / 2 }} {{ 1 - 2 }} {{ -(3 - 1) }}": "3 -4 3 3.5 -1 -2",
    "{{ 'ff' | int(base=16) }} {{ '0b11' | int(base=2) }} {{ [1, 2] | sum }} {{ -3 | abs }} {{ 2.5 | round }}":
        "255 3 3 3 2.0",
    "{{ 'a-b-c'.rsplit('-', 1) }} {{ 'a-b'.rfind('-') }} {{ ' x\n'.strip() }} {{ 'xax'.strip('x') }}":
        "['a-b', 'c'] 1 x a",
    "{{ dict([('a', 1)], b=2) }} {{ dict({'c': 3}) }} {{ {}.fromkeys('de', 4) }} {{ 'é'.encode() | length }}":
        "{'a': 1, 'b': 2} {'c': 3} {'d': 4, 'e': 4} 2",
    "{{ [{'n': 2}, {'n': 1}] | sort(attribute='n') }} {{ ['b', 'a'] | map('upper') | sort }}":
        "[{'n': 1}, {'n': 2}] ['A', 'B']",
}  # fmt: skip


@pytest.mark.parametrize("source", NUMBERS)
def test_small_numbers_and_searches_are_as_they_were(source: str) -> None:
    assert ChatTemplate(source).render(HI) == NUMBERS[source]


def test_time_of_others_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits, as on a busy machine, uses none."""
    monkeypatch.setattr(sandbox, "MAX_CPU_S", 0.05)
    budget = TemplateBudget()
    time.sleep(0.1)
    budget.tick()
    while time.thread_time() - budget._began < 0.06:
        sum(range(1000))
    with pytest.raises(jinja2.TemplateError, match="processor time"):
        budget.tick()


INVALID = {
    "long": "x" * (sandbox.MAX_SOURCE_CHARS + 1),
    "deep lists": "{{ " + "[" * 5000 + "]" * 5000 + " }}",
    "long sum": "{{ " + "1+" * 20000 + "1 }}",
    "deep loops": "{% for a in b %}" * 30 + "{% endfor %}" * 30,
    "many branches": "{% if a %}" + "{% elif b %}" * 10000 + "{% endif %}",
    "long number": "{{ " + "1" * 9999 + " }}",
    "long hexadecimal number": "{{ 0x" + "f" * 9999 + " // 3 }}",
    "open": "{{" * 9999,
}


@pytest.mark.parametrize("name", INVALID)
def test_what_cannot_be_compiled_is_a_model_error(name: str) -> None:
    with pytest.raises(ModelError, match="chat template is not valid"):
        ChatTemplate(INVALID[name])


CHEAP = {
    "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}": "1/3,2/3,3/3",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ loop.revindex }}{% else %}none{% endfor %}": "1221",
    "{% for m in messages if m.role == 'tool' %}x{% else %}none{% endfor %}": "none",
    "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k ~ v }}{% endfor %}": "a1b2",
    "{% for x in [[1, [2]], 3] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}": "123",
    "{% for m in messages[::-1] %}{{ m.content[:1] }}{% endfor %}": "tah",
    "{% for x in missing %}x{% else %}-{% endfor %}": "-",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('+') }}": "hi+three",
    "{{ messages | map(attribute='role') | unique | list }}": "['user', 'assistant']",
    "{{ 'a,b,c'.split(',', 1)[1].replace(',', '-').center(7) | upper }}": "  B-C  ",
    "{{ '%s=%05.1f' % ('x', 2.5) }} {{ '{0}:{n:>4}'.format('y', n=7) }} {{ '%s' | format('z') }}": "x=002.5 y:   7 z",
    "{{ 'a' ~ none ~ 1 ~ [2] }}{{ 'x' * 3 }}{{ 2 ** 10 }}{{ 7 % 4 }}{{ [1] + [2] }}": "aNone1[2]xxx10243[1, 2]",
    "{{ {'b': [1, 'é']} | tojson }} {{ {'a': 1} | tojson(indent=2) }}": '{"b": [1, "é"]} {\n  "a": 1\n}',
    "{{ ('a\\nb' | indent(2)) ~ ([3, 1] | sort) ~ ([1, 2] | sum) ~ (2.345 | round(2)) }}": "a\n  b[1, 3]32.35",
    "{{ '-'.join(['a', 'b']) }}{{ '-'.join(['c'] | map('upper')) }}{{ ['x', 'y'] | join }}": "a-bCxy",
    "{% macro m(x) %}<{{ x }}{{ caller() if caller }}>{% endmacro %}{% call m(1) %}in{% endcall %}{{ m(2) }}":
        "<1in><2>",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}": "3",
    "{% set x %}a{% for i in range(3) %}{{ i }}{% endfor %}{% endset %}{{ x }}{{ missing }}{{ missing is defined }}":
        "a012False",
    "{{ 'a' in ['a'] and 1 < 2 <= 2 and (1, 2) == (1, 2) and 'x' is string and messages is sequence }}": "True",
    "{{ dict(a=1, **{'b': 2}) }}{% set a, b = 1, 2 %}{{ a + b }}{{ messages | length }}{{ messages[0]['role'] }}":
        "{'a': 1, 'b': 2}33user",
}  # fmt: skip


@pytest.mark.parametrize("source", CHEAP)
def test_what_templates_do_is_as_it_was(source: str) -> None:
    """The same as without limits, by Jinja's own sandbox."""
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "all"}]
    messages.append({"role": "user", "content": "three"})
    assert ChatTemplate(source).render(messages) == CHEAP[source]
    if "tojson" not in source:
        own = jinja2.sandbox.ImmutableSandboxedEnvironment().from_string(source)
        assert own.render(messages=messages) == CHEAP[source]


def test_long_chats_stay_within_the_budget() -> None:
    """Also by a template that gathers all in one text, message by message."""
    messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": f"{i} " + "word " * 200} for i in range(300)]
    gathering = (
        "{% set ns = namespace(text='') %}{% for m in messages %}"
        "{% set ns.text = ns.text + '<' + m.role + '>' + m.content | trim %}{% endfor %}{{ ns.text }}"
    )
    text = ChatTemplate(gathering).render(messages)
    assert text == "".join(f"<{m['role']}>{m['content'].strip()}" for m in messages)


def test_a_namespace_does_not_write_what_it_holds() -> None:
    template = ChatTemplate("{% set ns = namespace(a=1) %}{% set ns.b = [ns, ns] %}{{ ns }}{{ ns.b }}")
    assert template.render(HI) == "<Namespace>[<Namespace>, <Namespace>]"


def test_what_is_made_of_what_comes_one_by_one_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = BoundedEnvironment()
    template = environment.compile_bounded("{{ values | batch(2) | list }}")
    assert template.render(with_budget({"values": range(4)}, TemplateBudget())) == "[[0, 1], [2, 3]]"
    monkeypatch.setattr(sandbox, "MAX_SPENT", 1 << 20)
    with pytest.raises(jinja2.TemplateError, match="it makes"):
        template.render(with_budget({"values": iter(lambda: "a", None)}, TemplateBudget()))


MEMORY = """
import resource
import sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
sys.path.append(sys.argv[1])
from tests.runtime.tokenizer.test_sandbox import TOO_LARGE
from bough.runtime.tokenizer.chat_template import ChatTemplate
from bough.runtime.protocol.errors import RequestError
for name, source in TOO_LARGE.items():
    try:
        ChatTemplate(source).render([{"role": "user", "content": "hi"}])
    except RequestError as error:
        assert "MemoryError" not in error.message, name
    else:
        raise AssertionError(name)
with open("/proc/self/status") as status:  # getrusage may give the parent's
    print(next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmHWM")))
"""


def test_memory_stays_within_what_is_promised(repository: str) -> None:
    """All of them in one process of a gibibyte, in which allocations beyond it fail."""
    result = subprocess.run(
        [sys.executable, "-P", "-c", MEMORY, str(repository)], capture_output=True, text=True, timeout=100
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 900
