"""Jinja's sandbox with limits: the size of a template's values is checked before they are computed, and time counts.

Templates come with models, whose files may be hostile. Jinja keeps them from reaching into Python, but not from
`'a' * 10**10`, nested loops, or lists that contain each other a thousand times. Here each operation, call, filter,
test, loop and text is checked against the rendering's `TemplateBudget` first.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Set, Sized, ValuesView
from functools import wraps
from time import monotonic, thread_time
from typing import Any, cast

import jinja2
import jinja2.nodes
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
import jinja2.visitor

MAX_SOURCE_CHARS = 1 << 17
MAX_VALUE = 1 << 24
"""Most characters of a text, or parts of a list or object with its contents, counted at each occurrence."""

MAX_SPENT = 1 << 29
"""Most bytes of all values that one rendering computes, kept or not."""

MAX_CPU_S = 1.0
"""Processor time of one rendering."""

_BUDGET = "the budget"  # not an identifier: no template can name it
_LOOP, _MADE, _WRITTEN, _PIECE, _USED = "loop values", "made", "written text", "piece of a text", "used"
_MAX_BITS = 1 << 16  # of whole numbers
_MAX_SLOW = 1 << 16  # characters for operations of quadratic time
_MAX_SEARCH = 1 << 28  # characters of a text times those of the searched text
_MAX_LEVEL = 64  # indentation of JSON, characters
_MANY_CHARS = 1 << 20
_NUMBER_CHARS = 400  # of the longest float, written out
_CODECS = frozenset({"utf-8", "utf8", "ascii", "latin-1", "latin1", "iso-8859-1", "utf-16", "utf-32"})
_CODED = 4  # bytes of a character
_REPLACED = 128  # characters of the name of one, as `namereplace` writes it
_CONTAINERS = (list, tuple, Mapping, Set, ValuesView)
_SCOPES = ("_block_vars", "_loop_vars")  # keywords that Jinja's code passes along with a call's own
_SPACES = tuple(chr(code) for code in range(0x3001) if chr(code).isspace())


class TemplateLimitError(jinja2.TemplateError):
    """A template exceeds a limit of its rendering."""


class TemplateBudget:
    """Budget of one rendering, on one thread.

    Raises TemplateLimitError where it does not suffice.
    """

    def __init__(self) -> None:
        self._began = thread_time()
        self._look_at = monotonic() + MAX_CPU_S  # the limit cannot be exceeded earlier
        self._left = MAX_SPENT
        self._sizes: dict[int, tuple[object, int]] = {}  # of containers, kept so that their ids stay unique

    def tick(self) -> None:
        """Raises TemplateLimitError if the time is up."""
        if monotonic() >= self._look_at:
            used = thread_time() - self._began
            if used >= MAX_CPU_S:
                raise TemplateLimitError(f"it takes more than {MAX_CPU_S:g} s of processor time")
            self._look_at = monotonic() + MAX_CPU_S - used

    def require(self, size: int) -> None:
        """Raises TemplateLimitError if a value would be too large: characters of a text, parts of a list."""
        if size > MAX_VALUE:
            raise TemplateLimitError(f"it makes a value of more than {MAX_VALUE} characters or parts")

    def spend(self, num_bytes: int) -> None:
        """Charges the bytes of a value. Raises TemplateLimitError if not enough are left."""
        self._left -= num_bytes
        if self._left < 0:
            raise TemplateLimitError(f"it makes more than {MAX_SPENT >> 20} MiB of values")

    def measure(self, value: Any) -> int:
        """Returns the characters of a text, or the approximate characters of another value's text with its contents."""
        if isinstance(value, str | bytes):
            return len(value)
        if isinstance(value, int):
            return 8 + value.bit_length() // 3
        if not isinstance(value, _CONTAINERS):
            return 64
        known = self._sizes.get(id(value))
        if known is not None and known[0] is value:
            return known[1]
        self.tick()
        size = 8
        if isinstance(value, Mapping):  # without lookups: keys with colliding hashes take long
            size += sum(4 + self.measure(key) + self.measure(part) for key, part in value.items())
        elif (kinds := set(map(type, value))) <= {str, bytes}:  # many parts of one kind, without a call for each
            size += 4 * len(value) + sum(map(len, value))
        elif kinds == {int}:
            size += 12 * len(value) + sum(map(int.bit_length, value)) // 3
        else:
            size += sum(4 + self.measure(part) for part in value)
        self._sizes[id(value)] = (value, size)
        return size

    def made(self, value: Any) -> Any:
        """Charges a value that a template has computed, and returns it."""
        if isinstance(value, str | bytes):
            self.require(len(value))
            self.spend(sys.getsizeof(value))
        elif isinstance(value, _CONTAINERS):
            self.require(self.measure(value))
            self.spend(sys.getsizeof(value))
        elif isinstance(value, int):
            _limit_bits(value.bit_length())
        elif isinstance(value, types.GeneratorType):
            return self._counted(value)
        return value

    def ticked(self, values: Iterable[Any]) -> Iterator[Any]:
        """Yields the values as long as there is time."""
        for value in values:
            self.tick()
            yield value

    def _counted(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self.tick()
            self.spend(8)
            yield self.made(value)


class _Namespace(jinja2.utils.Namespace):
    """A namespace whose text does not include its contents."""

    def __repr__(self) -> str:
        return "<Namespace>"


class BoundedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """An environment of templates that cannot exceed a `TemplateBudget`.

    Filters and globals that are added later are limited by `bind_filter` and `call`.
    """

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, finalize=_write)
        del self.globals["lipsum"]
        self.globals["namespace"] = _Namespace
        for name, function in list(self.filters.items()):
            self.bind_filter(name, function)
        self.tests = {name: _bounded(cast(Any, test), None) for name, test in self.tests.items()}
        self.filters |= {_LOOP: _loop, _MADE: _made, _WRITTEN: _written, _PIECE: _piece, _USED: _used}

    def bind_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Adds a filter, with the limits for its name."""
        self.filters[name] = _bounded(function, _FILTER_LIMITS.get(name), _ATTRIBUTE_AT.get(name))

    def compile_bounded(self, source: str) -> jinja2.Template:
        """Compiles a template.

        Raises:
            jinja2.TemplateError: the source is too long or invalid.
        """
        if len(source) > MAX_SOURCE_CHARS:
            raise TemplateLimitError(f"it is {len(source)} characters long, at most {MAX_SOURCE_CHARS} are accepted")
        try:
            tree = _Instrument().visit(self.parse(source))
            tree.set_environment(self)
            return self.from_string(tree)
        except (ArithmeticError, LookupError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError) as error:
            raise jinja2.TemplateError(f"{type(error).__name__}: {error}") from error

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """See SandboxedEnvironment.call_binop."""
        budget = _budget(context)
        budget.tick()
        _OPERATOR_LIMITS[operator](budget, left, right)
        return budget.made(self.binop_table[operator](left, right))

    def call(*arguments: Any, **keywords: Any) -> Any:
        """See SandboxedEnvironment.call: environment, context, the callee, and its arguments."""
        self, context, called, *positional = arguments
        budget = _budget(context)
        budget.tick()
        if isinstance(called, jinja2.runtime.LoopContext):  # a recursive loop
            positional[:1] = map(budget.ticked, positional[:1])
        method = getattr(called, "__wrapped__", called)  # the sandbox wraps str.format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if name == "join" and positional and not isinstance(positional[0], list | tuple | str):
            positional[0] = list(budget.ticked(positional[0]))
        keyed = called in (dict, _Namespace) or name == "fromkeys"
        if keyed and positional and not isinstance(positional[0], Mapping):
            positional[0] = budget.ticked(positional[0])  # the hashes of keys may collide
        limit = _METHOD_LIMITS.get(name)
        if limit is not None and isinstance(owner, str | bytes | int):
            limit(budget, owner, *positional, **{name: keywords[name] for name in keywords if name not in _SCOPES})
        bound = super(BoundedEnvironment, self).call
        return budget.made(bound(context, called, *positional, **keywords))


def with_budget(variables: Mapping[str, Any], budget: TemplateBudget) -> dict[str, Any]:
    """Returns the variables of one rendering of a `BoundedEnvironment`'s template."""
    return {**variables, _BUDGET: budget}


class _Instrument(jinja2.visitor.NodeTransformer):
    """Inserts filters that check the budget around nodes that no method of the environment sees."""

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.Node:  # noqa: N802  the library's names
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _LOOP)
        return node

    def visit_Output(self, node: jinja2.nodes.Output) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        num_chars = sum(len(each.data) for each in node.nodes if isinstance(each, jinja2.nodes.TemplateData))
        if num_chars:
            amount = jinja2.nodes.Const(num_chars, lineno=node.lineno)
            node.nodes.append(_filtered(amount, _WRITTEN))
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_filtered(each, _PIECE) for each in node.nodes]
        return node

    def visit_Compare(self, node: jinja2.nodes.Compare) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filtered(node.expr, _USED)
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, _USED)
        return node

    def visit_Getitem(self, node: jinja2.nodes.Getitem) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.arg, jinja2.nodes.Slice):
            return _filtered(node, _MADE)
        return node if isinstance(node.arg, jinja2.nodes.Const) else _filtered(node, _USED)  # a key may be large

    def visit_List(self, node: jinja2.nodes.List) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, _MADE) if node.items else node

    def visit_Dict(self, node: jinja2.nodes.Dict) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, _MADE) if node.items else node

    def visit_Tuple(self, node: jinja2.nodes.Tuple) -> jinja2.nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, _MADE) if node.ctx == "load" and node.items else node


def _filtered(node: Any, name: str) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _budget(context: jinja2.runtime.Context) -> TemplateBudget:
    budget: TemplateBudget = context.parent[_BUDGET]
    return budget


@jinja2.pass_context
def _loop(context: jinja2.runtime.Context, values: Any) -> Iterator[Any]:
    return _budget(context).ticked(values)


@jinja2.pass_context
def _made(context: jinja2.runtime.Context, value: Any) -> Any:
    budget = _budget(context)
    budget.tick()
    return budget.made(value)


@jinja2.pass_context
def _written(context: jinja2.runtime.Context, num_chars: int) -> str:
    """Charges the adjacent literal texts of a template; writes nothing itself."""
    budget = _budget(context)
    budget.tick()
    budget.spend(num_chars)
    return ""


@jinja2.pass_context
def _piece(context: jinja2.runtime.Context, value: Any) -> Any:
    budget = _budget(context)
    budget.tick()
    size = budget.measure(value)
    budget.require(size)
    budget.spend(size)
    return value


@jinja2.pass_context
def _used(context: jinja2.runtime.Context, value: Any) -> Any:
    _budget(context).tick()
    return value


@jinja2.pass_context
def _write(context: jinja2.runtime.Context, value: Any) -> Any:
    """Charges a value before it is written."""
    return value if isinstance(value, jinja2.Undefined) else _piece(context, value)


def _bounded(
    function: Callable[..., Any], limit: Callable[..., None] | None, attribute_at: int | None = None
) -> Callable[..., Any]:
    """Wraps a filter or test with a check of the budget; `attribute_at` is the place of an attribute's name."""
    wanted = getattr(getattr(function, "jinja_pass_arg", None), "name", None)

    @jinja2.pass_context
    @wraps(function, assigned=("__name__", "__doc__"), updated=())
    def bounded(context: jinja2.runtime.Context, value: Any = None, *arguments: Any, **keywords: Any) -> Any:
        budget = _budget(context)
        budget.tick()
        if attribute_at is not None:
            attribute = keywords.get("attribute", arguments[attribute_at] if len(arguments) > attribute_at else None)
            if isinstance(attribute, str):
                value = list(value) if isinstance(value, Iterator) else value
                _limit_attribute(budget, value, attribute)
        if limit is not None:
            limit(budget, value, *arguments, **keywords)
        before = {"context": (context,), "eval_context": (context.eval_ctx,), "environment": (context.environment,)}
        return budget.made(function(*before.get(wanted or "", ()), value, *arguments, **keywords))

    del bounded.__wrapped__
    return bounded


# Limits: the size of an operation's result, by its arguments


def _limit_numbers(budget: TemplateBudget, left: Any, right: Any) -> None:
    for value in (left, right):
        if isinstance(value, int):
            _limit_bits(value.bit_length())


def _limit_product(budget: TemplateBudget, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _limit_bits(left.bit_length() + right.bit_length())
    for value, times in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(value, str | bytes | list | tuple):
            budget.require(max(budget.measure(value), len(value)) * max(times, 0))


def _limit_power(budget: TemplateBudget, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _limit_bits(left.bit_length() * max(right, 0))


def _limit_bits(num_bits: int) -> None:
    if num_bits > _MAX_BITS:
        raise TemplateLimitError(f"it makes a number of more than {_MAX_BITS} bits")


def _limit_sum(budget: TemplateBudget, left: Any, right: Any) -> None:
    if isinstance(left, str | bytes | list | tuple):
        budget.require(budget.measure(left) + budget.measure(right))


def _limit_remainder(budget: TemplateBudget, left: Any, right: Any) -> None:
    if isinstance(left, str | bytes):
        _limit_format(budget, left, right)
    else:
        _limit_numbers(budget, left, right)


def _limit_format(budget: TemplateBudget, pattern: Any, *arguments: Any, **named: Any) -> None:
    """Limits `%` and `format`: widths are in the pattern, or are numbers among the arguments."""
    pattern = pattern if isinstance(pattern, str) else str(pattern)
    if re.search(r"\{[^{}:]*:[^{}]*\{", pattern):
        raise TemplateLimitError("a format takes its width from another field")
    if re.search(r"\{[^{}]*(?![0-9])\d", pattern):  # Python takes them for a width too
        raise TemplateLimitError("a format has digits that are not ASCII")
    parts = [*_flat(arguments), *named.values()]
    numbers = [abs(part) for part in parts if isinstance(part, int)] if "*" in pattern else []
    width = max((int(found[0][:9]) for found in budget.ticked(re.finditer("[0-9]+", pattern))), default=0)
    num_fields = pattern.count("{") + pattern.count("%")
    largest = max([_NUMBER_CHARS, *map(budget.measure, parts)])
    budget.require(len(pattern) + num_fields * (largest + max([width, *numbers])))


def _flat(arguments: Iterable[Any]) -> Iterator[Any]:
    """Yields the arguments, with tuples and objects flattened."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from argument
        elif isinstance(argument, Mapping):
            yield from argument.values()
        else:
            yield argument


def _limit_width(budget: TemplateBudget, text: Any, width: Any = 80, *_: Any, **__: Any) -> None:
    _limit_text(budget, text)
    budget.require(width if isinstance(width, int) else 0)


def _limit_tabs(budget: TemplateBudget, text: Any, tabsize: int = 8) -> None:
    budget.require(len(text) + text.count("\t" if isinstance(text, str) else b"\t") * max(tabsize, 0))


def _limit_replace(budget: TemplateBudget, text: Any, old: Any, new: Any, count: Any = None) -> None:
    _limit_text(budget, text)
    text, old, new = (value if isinstance(value, str | bytes) else str(value) for value in (text, old, new))
    found = text.count(old)
    times = found if count is None or count < 0 else min(found, count)
    budget.require(len(text) + times * len(new))


def _limit_joined(budget: TemplateBudget, separator: Any, parts: Any) -> None:
    budget.require(budget.measure(parts) + len(parts) * len(separator))


def _limit_join(budget: TemplateBudget, parts: Any, d: Any = "", attribute: Any = None) -> None:
    """Limits the filter; the values of an iterator are charged as they arrive."""
    budget.require(budget.measure(d))
    if isinstance(parts, Sized):
        budget.require(budget.measure(parts) + len(parts) * budget.measure(d))


def _limit_search(budget: TemplateBudget, text: Any, wanted: Any = None, *_: Any, **__: Any) -> None:
    """Limits operations that in the worst case compare each character of one text with all of another."""
    _limit_text(budget, text)
    if isinstance(wanted, str | bytes) and budget.measure(text) * len(wanted) > _MAX_SEARCH:
        raise TemplateLimitError(
            f"it searches {budget.measure(text)} characters for {len(wanted)}, which takes too long"
        )


def _limit_split_right(budget: TemplateBudget, text: Any, sep: Any = None, maxsplit: int = -1) -> None:
    _limit_search(budget, text, sep)
    _limit_split(budget, text, sep, maxsplit)


def _limit_codec(budget: TemplateBudget, text: Any, encoding: str = "utf-8", errors: str = "strict") -> None:
    if encoding.lower().replace("_", "-") not in _CODECS:  # others may take quadratic time
        raise TemplateLimitError(f"a text cannot be encoded as {encoding[:_MAX_LEVEL]!r} here")
    budget.require(len(text) * (_CODED if errors in ("strict", "ignore", "replace") else _REPLACED))


def _limit_attribute(budget: TemplateBudget, values: Any, attribute: str) -> None:
    """Limits a path of attributes that is looked up in many values."""
    if len(attribute) > _MAX_SLOW:
        raise TemplateLimitError(f"it passes more than {_MAX_SLOW} characters to a slow operation")
    budget.require(len(attribute) * len(values) if isinstance(values, Sized) else 0)


def _limit_translate(budget: TemplateBudget, text: str, table: Any) -> None:
    longest = max([4, *map(budget.measure, table.values())]) if isinstance(table, Mapping) else budget.measure(table)
    budget.require(len(text) * longest)


def _limit_split(budget: TemplateBudget, text: Any, sep: Any = None, maxsplit: int = -1) -> None:
    if len(text) < _MANY_CHARS:
        return
    found = text.count(sep) if sep else sum(map(text.count, _SPACES)) if isinstance(text, str) else len(text)
    budget.require(16 * (found if maxsplit < 0 else min(found, maxsplit)))


def _limit_lines(budget: TemplateBudget, text: Any, *_: Any, **__: Any) -> None:
    if len(text) >= _MANY_CHARS:
        budget.require(16 * sum(map(text.count, _SPACES)) if isinstance(text, str) else 16 * len(text))


def _limit_bytes(budget: TemplateBudget, number: Any, *_: Any, **__: Any) -> None:
    raise TemplateLimitError("numbers cannot be converted to bytes here")


def _limit_text(budget: TemplateBudget, value: Any, *_: Any, **__: Any) -> None:
    budget.require(budget.measure(value))


def _limit_words(budget: TemplateBudget, value: Any, *_: Any, **__: Any) -> None:
    budget.require(8 * budget.measure(value))


def _limit_slow(budget: TemplateBudget, value: Any, *arguments: Any, **named: Any) -> None:
    """Limits operations that may write their other arguments as often as the value has characters."""
    size, *others = map(budget.measure, (value, *arguments, *named.values()))
    if max((size, *others)) > _MAX_SLOW:
        raise TemplateLimitError(f"it passes more than {_MAX_SLOW} characters to a slow operation")
    budget.require(size * max(others, default=0))


def _limit_list(budget: TemplateBudget, value: Any, *_: Any, **__: Any) -> None:
    if isinstance(value, Sized):
        budget.require(4 * len(value))


def _limit_chunks(budget: TemplateBudget, value: Any, count: Any, *_: Any, **__: Any) -> None:
    _limit_list(budget, value)
    budget.require(8 * count if isinstance(count, int) else 0)


def _limit_indent(budget: TemplateBudget, text: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    _limit_text(budget, text)
    lines = 1 + (text.count("\n") if isinstance(text, str) else budget.measure(text))
    budget.require(budget.measure(text) + lines * (width if isinstance(width, int) else budget.measure(width)))


def _limit_json(
    budget: TemplateBudget,
    value: Any,
    ensure_ascii: Any = False,
    indent: Any = None,
    separators: Any = None,
    *_: Any,
    **__: Any,
) -> None:
    level = indent if isinstance(indent, int) else budget.measure(indent or "")
    if level > _MAX_LEVEL or budget.measure(separators or "") > _MAX_LEVEL:
        raise TemplateLimitError(f"tojson gets an indent or separators of more than {_MAX_LEVEL} characters")
    size = budget.measure(value)
    budget.require(size * (1 + level * _depth(value)) if level else size)


def _depth(value: Any) -> int:
    """Returns the levels of nested lists and objects; JSON has a few, and a thousand end in an error."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return 1 + max(map(_depth, parts), default=0)


def _limit_precision(budget: TemplateBudget, value: Any, precision: Any = 0, *_: Any, **__: Any) -> None:
    if isinstance(precision, int) and abs(precision) > _NUMBER_CHARS:
        raise TemplateLimitError(f"round gets a precision beyond {_NUMBER_CHARS}")


def _limit_total(budget: TemplateBudget, values: Any, attribute: Any = None, start: Any = 0) -> None:
    if not isinstance(start, int | float):
        raise TemplateLimitError("sum adds only numbers")


_OPERATOR_LIMITS: Mapping[str, Callable[[TemplateBudget, Any, Any], None]] = {
    **dict.fromkeys(("-", "/", "//"), _limit_numbers),
    "*": _limit_product, "**": _limit_power, "+": _limit_sum, "%": _limit_remainder,
}  # fmt: skip

_METHOD_LIMITS: Mapping[str, Callable[..., None]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _limit_width),
    **dict.fromkeys(("lstrip", "rfind", "rindex", "rpartition", "rstrip", "strip"), _limit_search),
    **dict.fromkeys(("decode", "encode"), _limit_codec),
    **dict.fromkeys(("format", "format_map"), _limit_format),
    "expandtabs": _limit_tabs, "join": _limit_joined, "replace": _limit_replace, "rsplit": _limit_split_right,
    "split": _limit_split, "splitlines": _limit_lines, "striptags": _limit_slow, "to_bytes": _limit_bytes,
    "translate": _limit_translate,
}  # fmt: skip

_FILTER_LIMITS: Mapping[str, Callable[..., None]] = {
    **dict.fromkeys(
        (
            "capitalize", "e", "escape", "filesizeformat", "forceescape", "lower", "safe", "string", "truncate",
            "upper", "xmlattr",
        ),
        _limit_text,
    ),
    **dict.fromkeys(("title", "urlencode", "wordcount"), _limit_words),
    **dict.fromkeys(("pprint", "striptags", "urlize", "wordwrap"), _limit_slow),
    **dict.fromkeys(("dictsort", "groupby", "list", "reverse", "sort", "unique"), _limit_list),
    **dict.fromkeys(("batch", "slice"), _limit_chunks),
    "center": _limit_width, "format": _limit_format, "indent": _limit_indent, "join": _limit_join,
    "replace": _limit_replace, "round": _limit_precision, "sum": _limit_total, "tojson": _limit_json,
    "trim": _limit_search,
}  # fmt: skip

_ATTRIBUTE_AT: Mapping[str, int] = {
    **dict.fromkeys(("groupby", "rejectattr", "selectattr", "sum"), 0),
    **dict.fromkeys(("join", "max", "min", "unique"), 1),
    "sort": 2, "map": sys.maxsize,
}  # fmt: skip
"""Filters that take the name of an attribute, and its place among their arguments; `map` takes it by name."""
