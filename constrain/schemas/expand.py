"""Opens conjunctions of subschemas into the shapes that their values may have, type by type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import combinations
from typing import Any, Literal

from ..errors import GrammarTooComplexError, InvalidSchemaError
from .document import pointer_of
from .keywords import Keywords
from .plans import MAX_COUNTS
from .shapes import TOPS, ArrayShape, KeySet, Node, NumberShape, ObjectShape, SeenItems, Shape, StringShape
from .subschemas import Subschemas
from .values import kinds_of, structure, value_key, values_of

REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
COMBINATIONS = ("allOf", "oneOf", "anyOf", "not", "if", "dependentSchemas")
_UNEVALUATED = {"array": "unevaluatedItems", "object": "unevaluatedProperties"}
IN_PLACE = frozenset((*REFERENCES, *COMBINATIONS))
MAX_SHAPES = 16
"""Shapes of one type that two unions make together, if there are not more in one of them. Of more, those that demand
the fewest keys or elements are kept: the grammar then allows less than the schema, and never more."""
MAX_MERGES = 50_000
MAX_SUBSETS_OF = 6
"""Branches of an `anyOf` of which every combination is told apart where annotations count."""
MAX_PROOF_DEPTH = 4

Annotate = Literal[False, True, "exactly"]
"""Whether shapes carry what their subschemas have evaluated: not, at least that, or exactly that."""


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
        self._positive: dict[tuple[int, str, Annotate], list[Shape]] = {}
        self._negative: dict[tuple[int, str], list[Shape]] = {}
        self._empty: dict[Node, bool] = {}
        self._active: set[tuple[int, str, Annotate]] = set()
        self._proof_depth = 0
        self._num_merges = 0

    # Shapes

    def shapes(self, node: Node, kind: str) -> list[Shape]:
        """The shapes of type `kind` of the values of `node`."""
        key = (node, kind)
        found = self._shapes.get(key)
        if found is None:
            found = [TOPS[kind]]
            if any(literal ^ 1 in node for literal in node):
                found = []
            for literal in sorted(node):
                if not found:
                    break
                found = self._product(found, self._of_literal(literal, kind))
            self._shapes[key] = found
        return found

    def kinds(self, node: Node) -> list[str]:
        """The types that values of `node` may have, as far as `type` says it."""
        found = list(TOPS)
        for literal in node:
            schema = self._document.schema(self.subschemas.place(literal)[0])
            if not literal & 1 and isinstance(schema, dict) and "type" in schema:
                allowed = kinds_of(schema)
                found = [kind for kind in found if kind in allowed]
        return found

    def is_empty(self, node: Node) -> bool:
        """Whether `node` is known to have no value; found with bounded effort."""
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
        if literal & 1:
            negative = self._negative.get((literal, kind))
            if negative is None:
                with self._visit(literal, (literal, kind, False)):
                    negative = self._negative[literal, kind] = _simplified(list(self._negate(literal ^ 1, kind)))
            return negative
        positive = self._positive.get((literal, kind, annotate))
        if positive is None:
            with self._visit(literal, (literal, kind, annotate)):
                positive = self._positive[literal, kind, annotate] = self._affirm(literal, kind, annotate)
        return positive

    def _visit(self, literal: int, key: tuple[int, str, Annotate]) -> AbstractContextManager[None]:
        schema = self._document.schema(self.subschemas.place(literal)[0])
        in_place = isinstance(schema, dict) and not schema.keys().isdisjoint(IN_PLACE)
        return _Visit(self, key) if in_place else _LEAF

    def _affirm(self, literal: int, kind: str, annotate: Annotate) -> list[Shape]:
        schema = self._document.schema(self.subschemas.place(literal)[0])
        if isinstance(schema, bool):
            return [TOPS[kind]] if schema else []
        if kind not in kinds_of(schema):
            return []
        unevaluated = _UNEVALUATED.get(kind, "")
        own = unevaluated in schema
        result = self._values(literal, schema, kind)
        local = self._keywords.shape(literal, schema, kind, bool(annotate or own))
        result = [] if local is None else self._product(result, [local])
        for part in self._applied(literal, schema, kind, annotate or own):
            if not result:
                return []
            result = self._product(result, part)
        if own:
            closed = (self._keywords.close(literal, unevaluated, shape, bool(annotate)) for shape in result)
            result = [shape for shape in closed if shape is not None]
        return result

    def _values(self, literal: int, schema: dict[str, Any], kind: str) -> list[Shape]:
        """The values of one type that `enum` and `const` leave."""
        values = values_of(schema)
        if values is None:
            return [TOPS[kind]]
        self.subschemas.enforced.add("const" if "const" in schema else "enum")
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
        """What each keyword that applies subschemas in place allows."""
        location, scope = self.subschemas.place(literal)
        for keyword in REFERENCES:
            if keyword in schema:
                self.subschemas.enforced.add(keyword)
                target = self.subschemas.literal(self._document.target(location, keyword, scope), scope)
                yield self._of_literal(target, kind, annotate)
        for keyword in COMBINATIONS:
            if keyword not in schema or (keyword == "dependentSchemas" and kind != "object"):
                continue
            self.subschemas.enforced.add(keyword)
            if keyword == "allOf":
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
            part = self._of_literal(branch, kind, annotate)
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
        """Whether a value may be in both unions, of which the second may have been cut short."""
        return bool(self._product(first, second)) or self.subschemas.narrowed

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
            result += [shape for shape in together if shape not in result]
        return result

    def _choices(self, num_branches: int, annotate: Annotate) -> Iterator[tuple[int, ...]]:
        """Which branches of an `anyOf` hold together, as far as they are told apart."""
        if num_branches > MAX_SUBSETS_OF:
            if annotate == "exactly":
                raise GrammarTooComplexError(
                    f"`unevaluated...` is negated beside an anyOf of more than {MAX_SUBSETS_OF} branches"
                )
            self.subschemas.narrowed = True
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
        schema = self._document.schema(location)
        if isinstance(schema, bool):
            if not schema:
                yield TOPS[kind]
            return
        if kind not in kinds_of(schema):
            yield TOPS[kind]
            return
        yield from self._negate_values(schema, kind)
        yield from self._keywords.negate(literal, schema, kind)
        for keyword in REFERENCES:
            if keyword in schema:
                target = self.subschemas.literal(self._document.target(location, keyword, scope), scope)
                yield from self._of_literal(target ^ 1, kind)
        for keyword in COMBINATIONS:
            if keyword in schema and (keyword != "dependentSchemas" or kind == "object"):
                yield from self._negate_combination(literal, schema, kind, keyword)
        unevaluated = _UNEVALUATED.get(kind, "")
        if unevaluated in schema:
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

    def _negate_values(self, schema: dict[str, Any], kind: str) -> Iterator[Shape]:
        values = values_of(schema)
        if values is None:
            return
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
        if len(second) == 1 and second[0] == TOPS_BY_TYPE[type(second[0])]:
            return first
        if len(first) == 1 and first[0] == TOPS_BY_TYPE[type(first[0])]:
            return second
        annotated = any(getattr(shape, "seen", None) not in _NOTHING_SEEN for shape in second)
        result: list[Shape] = []
        for one in first:
            found: list[Shape] = []
            for other in second:
                self._num_merges += 1
                merged = one.merge(other, self.is_empty)  # type: ignore[arg-type]  # both are of one type
                if merged is None:
                    continue
                if merged == one and not annotated:  # all of it is in the second union
                    found = [merged]
                    break
                found.append(merged)
            result += [shape for shape in found if shape not in result]
            if self._num_merges > MAX_MERGES:
                raise GrammarTooComplexError("the schema's combinations are too many to be written out")
        if len(result) > 1 and isinstance(result[0], ArrayShape):
            countable = [shape for shape in result if isinstance(shape, ArrayShape) and len(shape.counts) <= MAX_COUNTS]
            if countable and len(countable) < len(result):
                self.subschemas.narrowed = True
                result = [*countable]
        if len(result) > max(MAX_SHAPES, len(first), len(second)):
            self.subschemas.narrowed = True
            result = sorted(result, key=_num_demands)[: max(MAX_SHAPES, len(first), len(second))]
        return result


def _num_demands(shape: Shape) -> int:
    """How many keys or elements a shape asks for."""
    if isinstance(shape, ObjectShape):
        return len(shape.required) + len(shape.some)
    return shape.low + len(shape.counts) if isinstance(shape, ArrayShape) else 0


_NOTHING_SEEN = (None, SeenItems(), KeySet())

TOPS_BY_TYPE: dict[type, Shape] = {type(shape): shape for shape in TOPS.values()}


_LEAF: AbstractContextManager[None] = nullcontext()


class _Visit(AbstractContextManager[None]):
    """Marks a literal as being opened, to find references that lead back to themselves without a value in between."""

    def __init__(self, expander: Expander, key: tuple[int, str, Annotate]) -> None:
        self._expander = expander
        self._key = key

    def __enter__(self) -> None:
        if self._key in self._expander._active:
            pointer = pointer_of(self._expander.subschemas.place(self._key[0])[0])
            raise InvalidSchemaError("references lead back to themselves without a value in between", path=pointer)
        self._expander._active.add(self._key)

    def __exit__(self, *_: object) -> None:
        self._expander._active.discard(self._key)


def _simplified(shapes: list[Shape], *, keep_all: bool = False) -> list[Shape]:
    """The same union without repetitions; everything, if one of them is that."""
    result: list[Shape] = []
    for shape in shapes:
        if not keep_all and shape == TOPS_BY_TYPE[type(shape)]:
            return [shape]
        if shape not in result:
            result.append(shape)
    return result
