"""Opens conjunctions of subschemas into the shapes that their values may have, type by type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import combinations
from typing import Any, Literal

from ...errors import GrammarTooComplexError, InvalidSchemaError
from ..document import pointer_of
from ..parse import structure, value_key
from .plans import MAX_COUNTS
from .shapes import (
    TOPS,
    ArrayShape,
    KeySet,
    Keywords,
    NumberShape,
    ObjectShape,
    SeenItems,
    Shape,
    StringShape,
    common_strings,
)
from .subschemas import COMBINATIONS, REFERENCES, Facts, Node, Subschemas

_UNEVALUATED = {"array": "unevaluatedItems", "object": "unevaluatedProperties"}
MAX_SHAPES = 16
"""Shapes of one type that two unions make together, if there are not more in one of them. Of more, those that demand
the fewest keys or elements are kept: the grammar then allows less than the schema, and never more."""
MAX_MERGES = 50_000
MAX_SUBSETS_OF = 6
"""Branches of an `anyOf` of which every combination is told apart where annotations count."""
MAX_PROOF_DEPTH = 4

Annotate = Literal[False, True, "exactly"]
"""Tells whether shapes carry what their subschemas have evaluated: not, at least that, or exactly that."""


class Expander:
    """Says what shapes the values of a conjunction have.

    A `Node` is a set of literals. Shapes are in disjunctive form: a value satisfies a node if it is of one of the
    shapes of its type.
    """

    def __init__(self, subschemas: Subschemas) -> None:
        self.subschemas = subschemas
        self._document = subschemas.document
        self._keywords = Keywords(subschemas, self)
        self._shapes: dict[tuple[Node, str], list[Shape]] = {}
        self._literals: dict[tuple[int, str, Annotate], list[Shape]] = {}
        self._empty: dict[Node, bool] = {}
        self._active: set[tuple[int, str, Annotate]] = set()
        self._proof_depth = 0
        self._num_merges = 0
        self._opening: Node = frozenset()  # the literals that are being opened together

    # Shapes

    def shapes(self, node: Node, kind: str) -> list[Shape]:
        """The shapes of type `kind` of the values of `node`."""
        key = (node, kind)
        found = self._shapes.get(key)
        if found is None:
            found = self._shapes[key] = self._opened(node, kind)
        return found

    def _opened(self, node: Node, kind: str) -> list[Shape]:
        if len(node) == 1:
            return self._of_literal(next(iter(node)), kind)
        found = [TOPS[kind]]
        if any(literal ^ 1 in node for literal in node):
            return []
        outer, self._opening = self._opening, node
        parts = (self._of_literal(literal, kind) for literal in sorted(node))
        found = self._conjunction(found, parts, kind)
        self._opening = outer
        return found

    def kinds(self, node: Node) -> list[str]:
        """The types that values of `node` may have, as far as `type` says it."""
        found: list[str] = list(TOPS)
        for literal in node:
            if not literal & 1:
                facts = self.subschemas.facts(literal)
                if facts.values is not None:
                    self._note_values(facts)
                if len(facts.kinds) < len(TOPS):
                    found = [kind for kind in found if kind in facts.kinds]
        return found

    def is_empty(self, node: Node) -> bool:
        """Tells whether `node` is known to have no value; found with bounded effort."""
        if not node or self._proof_depth > MAX_PROOF_DEPTH:
            return False
        found = self._empty.get(node)
        if found is None:
            self._empty[node] = False  # while it is being looked at
            active, self._active = self._active, set()
            self._proof_depth += 1
            try:
                found = self._empty[node] = not any(self.shapes(node, kind) for kind in self.kinds(node))
            finally:
                self._active = active
                self._proof_depth -= 1
        return found

    def _of_literal(self, literal: int, kind: str, annotate: Annotate = False) -> list[Shape]:
        key: tuple[int, str, Annotate] = (literal, kind, False if literal & 1 else annotate)
        found = self._literals.get(key)
        if found is None:
            facts = self.subschemas.facts(literal)
            if literal & ~1 in self.subschemas.referred:
                self.subschemas.enforced.add("$ref")
            outer, self._opening = self._opening, frozenset((literal,))
            if facts.applied:
                with _Visit(self, key):
                    found = self._open_literal(literal, facts, kind, annotate)
            else:
                found = self._open_literal(literal, facts, kind, annotate)
            self._opening = outer
            self._literals[key] = found
        return found

    def _open_literal(self, literal: int, facts: Facts, kind: str, annotate: Annotate) -> list[Shape]:
        if literal & 1:
            return _simplified(list(self._negate(literal ^ 1, kind)))
        return self._affirm(literal, facts, kind, annotate)

    def _affirm(self, literal: int, facts: Facts, kind: str, annotate: Annotate) -> list[Shape]:
        schema = facts.schema
        if facts.values is not None:
            self._note_values(facts)
        if kind not in facts.kinds:
            return []
        if isinstance(schema, bool):
            return [TOPS[kind]]
        unevaluated = _UNEVALUATED.get(kind, "")
        own = bool(unevaluated) and unevaluated in schema
        local = self._keywords.shape(literal, schema, kind, bool(annotate or own))
        result = [] if local is None else [local]
        if facts.values is not None:
            result = self._product(self._values(facts.values, kind), result)
        if not facts.applied and not own:
            return result
        result = self._conjunction(result, self._applied(literal, schema, kind, annotate or own), kind)
        if own:
            closed = (self._keywords.close(literal, unevaluated, shape, bool(annotate)) for shape in result)
            result = [shape for shape in closed if shape is not None]
        return result

    def _note_values(self, facts: Facts) -> None:
        assert isinstance(facts.schema, dict)
        self.subschemas.enforced.add("const" if "const" in facts.schema else "enum")

    def _values(self, values: list[Any], kind: str) -> list[Shape]:
        """The values of one type that `enum` and `const` leave."""
        if kind not in ("array", "object"):
            shape = self._keywords.of_values(values, kind)
            return [] if shape is None else [shape]
        parts = [self._of_literal(value, kind) for value in self._structures(values, kind)]
        return [shape for part in parts for shape in part]

    def _structures(self, values: list[Any], kind: str) -> list[int]:
        wanted = list if kind == "array" else dict
        return [
            self.subschemas.literal(self._document.add("value:" + value_key(value), structure(value)), ())
            for value in values
            if isinstance(value, wanted)
        ]

    def _applied(self, literal: int, schema: dict[str, Any], kind: str, annotate: Annotate) -> Iterator[list[Shape]]:
        """Returns the shapes that each keyword which applies subschemas in place allows."""
        for keyword in self.subschemas.facts(literal).applied:
            if keyword == "dependentSchemas" and kind != "object":
                continue
            self.subschemas.enforced.add(keyword)
            if keyword in REFERENCES:
                location, scope = self.subschemas.place(literal)
                target = self.subschemas.literal(self._document.target(location, keyword, scope), scope)
                yield self._of_literal(target, kind, annotate)
            elif keyword == "allOf":
                for child in self.subschemas.children(literal, keyword).values():
                    yield self._of_literal(child, kind, annotate)
            elif keyword == "oneOf":
                yield self._exactly_one(list(self.subschemas.children(literal, keyword).values()), kind, annotate)
            elif keyword == "anyOf":
                yield self._at_least_one(list(self.subschemas.children(literal, keyword).values()), kind, annotate)
            elif keyword == "not":
                yield self._of_literal(self.subschemas.child(literal, keyword) ^ 1, kind)
            elif keyword == "if":
                yield self._conditional(literal, schema, kind, annotate)
            else:
                for name, child in self.subschemas.children(literal, keyword).items():
                    absent: Shape = ObjectShape({str(name): self.subschemas.never})
                    present: list[Shape] = [ObjectShape(required=frozenset({str(name)}))]
                    yield [absent, *self._product(present, self._of_literal(child, kind, annotate))]

    def _exactly_one(self, branches: list[int], kind: str, annotate: Annotate) -> list[Shape]:
        values = self._listed(branches, kind)
        if values is not None:
            once = [value for value, number in Counter(values).items() if number == 1]
            shape = self._keywords.of_values(once, kind)
            return [] if shape is None else [shape]
        result: list[Shape] = []
        for branch in branches:
            part = self._of_literal(branch, kind, annotate) if branches.count(branch) == 1 else []
            for other in branches:
                if other != branch and part and self._may_meet(part, self._of_literal(other, kind)):
                    part = self._product(part, self._of_literal(other ^ 1, kind))
            result += part
        return _simplified(result)

    def _listed(self, branches: list[int], kind: str) -> list[Any] | None:
        """The scalars of all branches, if each of them lists its own."""
        found: list[Any] = []
        for branch in branches:
            for shape in self._of_literal(branch, kind):
                if isinstance(shape, NumberShape) and shape.values is not None:
                    found += shape.values
                elif isinstance(shape, StringShape) and shape.bound is None and shape.language.finite_texts is not None:
                    found += shape.language.finite_texts
                else:
                    return None
        return found

    def _may_meet(self, first: list[Shape], second: list[Shape]) -> bool:
        """Tells whether a value may be in both unions, of which the second may have been cut short."""
        if self.subschemas.narrowed:
            return True
        return any(self._merged(one, other) is not None for one in first for other in second)

    def _at_least_one(self, branches: list[int], kind: str, annotate: Annotate) -> list[Shape]:
        parts = [self._of_literal(branch, kind, annotate) for branch in branches]
        if not annotate:
            return _simplified([shape for part in parts for shape in part])
        # A branch that holds beside another adds what it has evaluated.
        result: list[Shape] = []
        for chosen in self._choices(len(parts), annotate):
            together: list[Shape] = [TOPS[kind]]
            for index, part in enumerate(parts):
                if index in chosen:
                    together = self._product(together, part)
                elif annotate == "exactly":
                    together = self._product(together, self._of_literal(branches[index] ^ 1, kind))
            result += together
        return _distinct(result)

    def _choices(self, num_branches: int, annotate: Annotate) -> Iterator[tuple[int, ...]]:
        """Returns which branches of an `anyOf` hold together, as far as they are told apart."""
        if num_branches > MAX_SUBSETS_OF:
            if annotate == "exactly":
                raise GrammarTooComplexError(
                    f"`unevaluated...` is negated beside an anyOf of more than {MAX_SUBSETS_OF} branches"
                )
            self.subschemas.narrow(self._opening)
        sizes = range(1, num_branches + 1) if num_branches <= MAX_SUBSETS_OF else (1, num_branches)
        for size in sizes:
            yield from combinations(range(num_branches), size)

    def _conditional(self, literal: int, schema: dict[str, Any], kind: str, annotate: Annotate) -> list[Shape]:
        condition = self.subschemas.child(literal, "if")
        holds = self._of_literal(condition, kind, annotate)
        if "then" in schema and holds:
            holds = self._product(holds, self._of_literal(self.subschemas.child(literal, "then"), kind, annotate))
        fails = self._of_literal(condition ^ 1, kind) if "then" in schema or "else" in schema or annotate else []
        if "then" not in schema and "else" not in schema and not annotate:
            return [TOPS[kind]]
        if "else" in schema and fails:
            fails = self._product(fails, self._of_literal(self.subschemas.child(literal, "else"), kind, annotate))
        return _simplified([*holds, *fails], keep_all=bool(annotate))

    def _negate(self, literal: int, kind: str) -> Iterator[Shape]:
        """Shapes whose union are the values of type `kind` that do not satisfy a (positive) literal."""
        location, scope = self.subschemas.place(literal)
        facts = self.subschemas.facts(literal)
        schema = facts.schema
        if kind not in facts.kinds:
            yield TOPS[kind]
            return
        if isinstance(schema, bool):
            return
        if facts.values is not None:
            yield from self._negate_values(facts.values, kind)
        yield from self._keywords.negate(literal, schema, kind)
        for keyword in REFERENCES:
            if keyword in schema:
                target = self.subschemas.literal(self._document.target(location, keyword, scope), scope)
                yield from self._of_literal(target ^ 1, kind)
        for keyword in COMBINATIONS:
            if keyword in schema and (keyword != "dependentSchemas" or kind == "object"):
                yield from self._negate_combination(literal, schema, kind, keyword)
        unevaluated = _UNEVALUATED.get(kind, "")
        if unevaluated and unevaluated in schema:
            yield from self._negate_unevaluated(literal, schema, kind, unevaluated)

    def _negate_combination(self, literal: int, schema: dict[str, Any], kind: str, keyword: str) -> Iterator[Shape]:
        """The values of type `kind` for which a keyword that applies subschemas in place does not hold."""
        child, children = self.subschemas.child, self.subschemas.children
        if keyword == "not":
            yield from self._of_literal(child(literal, keyword), kind)
        elif keyword == "if":
            condition = child(literal, "if")
            if "then" in schema:
                yield from self.shapes(frozenset((condition, child(literal, "then") ^ 1)), kind)
            if "else" in schema:
                yield from self.shapes(frozenset((condition ^ 1, child(literal, "else") ^ 1)), kind)
        elif keyword == "allOf":
            for branch in children(literal, keyword).values():
                yield from self._of_literal(branch ^ 1, kind)
        elif keyword == "dependentSchemas":
            for name, branch in children(literal, keyword).items():
                present: list[Shape] = [ObjectShape(required=frozenset({str(name)}))]
                yield from self._product(present, self._of_literal(branch ^ 1, kind))
        else:
            branches = list(children(literal, keyword).values())
            yield from self.shapes(frozenset(branch ^ 1 for branch in branches), kind)
            if keyword == "oneOf":
                for first, second in combinations(branches, 2):
                    yield from self.shapes(frozenset((first, second)), kind)

    def _negate_values(self, values: list[Any], kind: str) -> Iterator[Shape]:
        if kind not in ("array", "object"):
            yield from self._keywords.without_values(values, kind)
            return
        yield from self.shapes(frozenset(value ^ 1 for value in self._structures(values, kind)), kind)

    def _negate_unevaluated(self, literal: int, schema: dict[str, Any], kind: str, keyword: str) -> Iterator[Shape]:
        """The values of which something is left over that fails; what is evaluated has to be known exactly for that."""
        local = self._keywords.shape(literal, schema, kind, True)
        shapes = [] if local is None else [local]
        for part in self._applied(literal, schema, kind, "exactly"):
            shapes = self._product(shapes, part)
        for shape in shapes:
            yield from self._keywords.open(literal, keyword, shape)

    # Disjunctive forms

    def _product(self, first: list[Shape], second: list[Shape]) -> list[Shape]:
        """The shapes of what is in both unions."""
        if not first or not second:
            return []
        if len(second) == 1 and _is_top(second[0]):
            return first
        if len(first) == 1 and _is_top(first[0]):
            return second
        annotated = any(getattr(shape, "seen", None) not in _NOTHING_SEEN for shape in second)
        result: list[Shape] = []
        for one in first:
            found: list[Shape] = []
            for other in second:
                merged = self._merged(one, other)
                if merged is None:
                    continue
                if merged == one and not annotated:  # all of it is in the second union
                    found = [merged]
                    break
                found.append(merged)
            result += found
        result = _distinct(result)
        if len(result) > 1 and isinstance(result[0], ArrayShape):
            countable = [shape for shape in result if isinstance(shape, ArrayShape) and len(shape.counts) <= MAX_COUNTS]
            if countable and len(countable) < len(result):
                self.subschemas.narrow(self._opening)
                result = [*countable]
        if len(result) > max(MAX_SHAPES, len(first), len(second)):
            self.subschemas.narrow(self._opening)
            result = sorted(result, key=_num_demands)[: max(MAX_SHAPES, len(first), len(second))]
        return result

    def _conjunction(self, first: list[Shape], parts: Iterator[list[Shape]], kind: str) -> list[Shape]:
        """Intersects the unions. Whether strings of several languages are none at all is asked once."""
        result, strings = first, []
        for part in parts:
            if not result or not part:
                return []
            if kind == "string" and len(part) == 1:
                strings += part
            else:
                result = self._product(result, part)
        if not strings:
            return result
        common = strings[0] if len(strings) == 1 else common_strings(strings)  # type: ignore[arg-type]  # they are
        result = self._product(result, [common])
        if len(strings) > 1 and result and result[0] is common:  # it was not merged with anything, nor looked at
            merged = self._merged(common, common)
            return [] if merged is None else [merged]
        return result

    def _merged(self, one: Shape, other: Shape) -> Shape | None:
        """Intersects two shapes; None if they are known to have nothing in common."""
        self._num_merges += 1
        if self._num_merges > MAX_MERGES:
            raise GrammarTooComplexError("the schema has too many combinations to be written out")
        return one.merge(other, self.is_empty)  # type: ignore[arg-type]  # both are of one type


def _num_demands(shape: Shape) -> int:
    """Returns how many keys or elements a shape asks for."""
    if isinstance(shape, ObjectShape):
        return len(shape.required) + len(shape.some)
    return shape.low + len(shape.counts) if isinstance(shape, ArrayShape) else 0


_NOTHING_SEEN = (None, SeenItems(), KeySet())

TOPS_BY_TYPE: dict[type, Shape] = {type(shape): shape for shape in TOPS.values()}


def _is_top(shape: Shape) -> bool:
    top = TOPS_BY_TYPE[type(shape)]
    return shape is top or shape == top


class _Visit(AbstractContextManager[None]):
    """Marks a literal as being opened, to find references that lead back to themselves without a value in between."""

    def __init__(self, expander: Expander, key: tuple[int, str, Annotate]) -> None:
        self._expander = expander
        self._key = key

    def __enter__(self) -> None:
        if self._key in self._expander._active:
            pointer = pointer_of(self._expander.subschemas.place(self._key[0])[0])
            raise InvalidSchemaError("the reference leads back to itself without a value in between", path=pointer)
        self._expander._active.add(self._key)

    def __exit__(self, *_: object) -> None:
        self._expander._active.discard(self._key)


def _simplified(shapes: list[Shape], *, keep_all: bool = False) -> list[Shape]:
    """Drops repetitions from a union; returns everything if one member is that."""
    top = None if keep_all else next(filter(_is_top, shapes), None)
    return _distinct(shapes) if top is None else [top]


def _distinct(shapes: list[Shape]) -> list[Shape]:
    """Each shape once. There may be hundreds of objects: those that differ in their keys are not compared."""
    if len(shapes) < 2:
        return shapes
    result: list[Shape] = []
    alike: dict[object, list[Shape]] = {}
    for shape in shapes:
        key: object = type(shape)
        if isinstance(shape, ObjectShape):
            key = (frozenset(shape.properties.items()), shape.required)
        others = alike.setdefault(key, [])
        if shape not in others:
            others.append(shape)
            result.append(shape)
    return result
