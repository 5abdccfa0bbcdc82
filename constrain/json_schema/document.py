"""A JSON Schema as a document: what stands where, by which draft it is read, and where its references lead."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias
from urllib.parse import unquote, urldefrag, urljoin

from ..errors import InvalidSchemaError, UnsupportedKeywordError, cut, quoted
from .parse import ABSENT, Schema, check_schema, draft_year, pointer_to, subschemas


@dataclass(frozen=True, slots=True)
class Draft:
    """The meaning that one draft gives its keywords.

    year                what the draft is called: 4, 6, 7, 2019 or 2020
    contains_evaluates  items that match `contains` count as evaluated
    """

    year: int

    @property
    def id_keyword(self) -> str:
        return "id" if self.year == 4 else "$id"

    @property
    def ref_stands_alone(self) -> bool:
        """Keywords beside `$ref` mean nothing."""
        return self.year <= 7

    @property
    def has_anchors(self) -> bool:
        return self.year >= 2019

    @property
    def has_recursion(self) -> bool:
        return self.year == 2019

    @property
    def contains_evaluates(self) -> bool:
        return self.year >= 2020

    @property
    def absent(self) -> frozenset[str]:
        """Keywords of other drafts, which mean nothing in this one."""
        return ABSENT[self.year]

    def modern(self, node: Any) -> Schema:
        """`node` in the keywords of draft 2020-12. Forms of older drafts that no later one gives a meaning are read."""
        if isinstance(node, bool):
            return node
        if "$ref" in node and self.ref_stands_alone:
            return {"$ref": node["$ref"]}
        if node.keys().isdisjoint(_UNLIKE_MODERN[self.year]):
            return node  # type: ignore[no-any-return]
        left_out = self.absent | _REWRITTEN
        result = {keyword: value for keyword, value in node.items() if keyword not in left_out}
        if isinstance(node.get("items"), list):
            result["prefixItems"] = At(("items",), node["items"])
            if "additionalItems" in node:
                result["items"] = At(("additionalItems",), node["additionalItems"])
        elif "items" in node:
            result["items"] = node["items"]
        _set_dependencies(result, node.get("dependencies", {}))
        _set_limits(result)
        if isinstance(result.get("required"), bool):
            del result["required"]  # draft 3 put it beside the property
        return result


@dataclass(frozen=True, slots=True)
class At:
    """The value of a keyword that stands elsewhere in the document: at `steps` from the schema's own place."""

    steps: tuple[str | int, ...]
    value: Any


_REWRITTEN = frozenset({"items", "additionalItems", "dependencies"})
_RETYPED = frozenset({"exclusiveMinimum", "exclusiveMaximum", "required"})
"""Keywords that a draft wrote as a boolean."""
_UNLIKE_MODERN = {year: absent | _REWRITTEN | _RETYPED for year, absent in ABSENT.items()}
"""A schema without these stands as in draft 2020-12."""


def draft_of(root: Schema) -> Draft:
    """The draft that `$schema` names; 2020-12 if it names none that is known."""
    return Draft(draft_year(root))


def _set_dependencies(result: dict[str, Any], value: dict[str, Any]) -> None:
    for name, item in value.items():
        keyword = "dependentRequired" if isinstance(item, list) else "dependentSchemas"
        if name not in result.get(keyword, {}):
            entry = item if isinstance(item, list) else At(("dependencies", name), item)
            result[keyword] = {**result.get(keyword, {}), name: entry}


def _set_limits(schema: dict[str, Any]) -> None:
    """Draft 4 wrote `exclusiveMinimum: true` beside `minimum`."""
    for exclusive, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        flag = schema.get(exclusive)
        if isinstance(flag, bool):
            del schema[exclusive]
            if flag and inclusive in schema:
                schema[exclusive] = schema.pop(inclusive)


Scope: TypeAlias = tuple[tuple[str, str], ...]
"""The dynamic scope as far as it matters: for each dynamic anchor's name, the outermost location that has it."""

_MODERN = Draft(2020)
_RECURSIVE = ""
"""The name under which `$recursiveAnchor` is kept in a scope; no anchor has an empty one."""


class Document:
    """A checked schema whose subschemas are looked up by location: `document URI#JSON pointer`.

    The schema itself has the URI "". The metaschemas of the standard are further documents; nothing is ever fetched.
    """

    def __init__(self, root: Schema) -> None:
        self.draft = draft_of(root)
        self._roots: dict[str, Any] = {"": root}
        self._drafts: dict[str, Draft] = {"": self.draft}
        self._resources: dict[str, str] = {}  # URIs by location of a resource's root
        self._targets: dict[str, str] = {}
        self._dynamic: dict[str, dict[str, str]] = {}  # dynamic anchors of the resource at a location
        self._schemas: dict[str, Schema] = {}
        self._added: dict[str, str] = {}
        self._nodes: dict[str, Any] = {}  # what lies at a location that holds a schema: that has been checked
        self._resolved: dict[tuple[str, str], str] = {}
        self._index("")
        self.is_dynamic = bool(self._dynamic)

    # Subschemas

    def schema(self, location: str) -> Schema:
        """The subschema at `location` in the keywords of draft 2020-12; its own subschemas are left as they are.

        Raises:
            InvalidSchemaError: there is none.
        """
        found = self._schemas.get(location)
        if found is None:
            draft = self._drafts[location.partition("#")[0]]
            if location in self._nodes:
                node = self._nodes[location]
            elif location.startswith("~"):
                node = self._node(location)
            else:  # it lies under a keyword that holds no schemas by itself
                node = self._node(location)
                check_schema(node, pointer_of(location), draft.absent)
            found = self._schemas[location] = draft.modern(node)
        return found

    def add(self, name: str, schema: Schema) -> str:
        """The location of a schema that is in no document, the same for the same `name`. Its `$ref`s are locations."""
        uri = self._added.get(name)
        if uri is None:
            uri = self._added[name] = f"~{len(self._added)}"
            self._roots[uri], self._drafts[uri] = schema, _MODERN
            self._resources[f"{uri}#"] = ""
        return f"{uri}#"

    def is_written(self, location: str) -> bool:
        """Tells whether the schema at `location` is in a document, and was not added."""
        return location.partition("#")[0] not in self._added.values()

    def _node(self, location: str) -> Any:
        if location in self._nodes:
            return self._nodes[location]
        uri, _, pointer = location.partition("#")
        node: Any = self._roots[uri]
        for step in pointer.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isascii() and name.isdigit() and int(name) < len(node):
                node = node[int(name)]
            else:
                raise InvalidSchemaError("there is no such subschema", path=pointer)
        return node

    # References

    def target(self, location: str, keyword: str, scope: Scope) -> str:
        """Returns where the reference of the schema at `location` leads.

        Raises:
            InvalidSchemaError: nowhere, or out of the document.
        """
        schema = self.schema(location)
        assert isinstance(schema, dict)
        reference = schema[keyword]
        if location.startswith("~"):
            return str(reference)
        if keyword == "$recursiveRef":
            home = self._home(location)
            return dict(scope).get(_RECURSIVE, home) if _RECURSIVE in self._dynamic.get(home, ()) else home
        found = self._resolve(reference, location, keyword)
        if keyword == "$dynamicRef":
            name = urldefrag(reference)[1]
            target = self.schema(found)
            if isinstance(target, dict) and target.get("$dynamicAnchor") == name:
                return dict(scope).get(name, found)
        return found

    def enter(self, location: str, scope: Scope) -> Scope:
        """The dynamic scope inside the schema at `location`, which is entered from `scope`."""
        if not self._dynamic or location.startswith("~"):
            return scope
        home = self._home(location)
        names = dict(scope)
        own = self._dynamic.get(home, {})
        for name, anchor in own.items():
            names.setdefault(name, anchor)
        if _RECURSIVE not in own:
            names.pop(_RECURSIVE, None)
        return tuple(sorted(names.items()))

    def _home(self, location: str) -> str:
        """The location of the root of the resource that `location` is in."""
        while location not in self._resources:
            location = location.rpartition("/")[0]
        return location

    def _resolve(self, reference: str, location: str, keyword: str) -> str:
        key = (location, keyword)
        if key not in self._resolved:
            self._resolved[key] = self._find(reference, location, keyword)
        return self._resolved[key]

    def _find(self, reference: str, location: str, keyword: str) -> str:
        where = pointer_to(pointer_of(location), keyword)
        home = self._home(location)
        base = self._resources[home]
        resource, fragment = urldefrag(_joined(base, reference, where))
        if resource not in ("", base):
            if resource not in self._targets and not self._load(resource):
                raise InvalidSchemaError(
                    f"reference {quoted(reference)} points outside the schema; remote references are not fetched: put "
                    "the target under $defs",
                    path=where,
                )
            base, home = resource, self._targets[resource]
        if fragment and not fragment.startswith("/"):
            name = f"{base}#{unquote(fragment)}" if base else f"{home.partition('#')[0]}#{unquote(fragment)}"
            if name not in self._targets:
                raise InvalidSchemaError(f"reference {quoted(reference)} has no target", path=where)
            return self._targets[name]
        target = home + unquote(fragment)
        try:
            self._node(target)
        except InvalidSchemaError:
            raise InvalidSchemaError(f"reference {quoted(reference)} has no target", path=where) from None
        return target

    def _load(self, uri: str) -> bool:
        """Adds one of the standard's metaschemas as a document; False if there is none of that URI."""
        contents = _metaschemas().get(uri)
        if contents is None:
            return False
        self._roots[uri] = contents
        self._drafts[uri] = draft_of(contents)
        self._index(uri)
        self.is_dynamic = bool(self._dynamic)
        return True

    def _index(self, uri: str) -> None:
        """Records what `$id` and anchors name in a document."""
        draft = self._drafts[uri]
        absent, id_keyword = draft.absent, draft.id_keyword
        root = f"{uri}#"
        self._resources[root] = uri
        if uri:
            self._targets[uri] = root
        stack: list[tuple[Any, str, str, str]] = [(self._roots[uri], root, uri, root)]
        while stack:
            node, location, base, home = stack.pop()
            self._nodes[location] = node
            if not isinstance(node, dict):
                continue
            identifier = node.get(id_keyword)
            if isinstance(identifier, str) and not (draft.ref_stands_alone and "$ref" in node):
                resolved = _joined(base, identifier, pointer_to(pointer_of(location), id_keyword))
                if draft.ref_stands_alone and identifier.startswith("#"):
                    anchor = base + identifier if base else root + identifier[1:]
                    self._targets.setdefault(anchor, location)
                else:
                    base, home = resolved.rstrip("#"), location
                    self._targets.setdefault(base, location)
                    self._resources[location] = base
            if draft.has_anchors:
                for keyword in ("$anchor", "$dynamicAnchor"):
                    if isinstance(node.get(keyword), str):
                        self._targets.setdefault(f"{base}#{node[keyword]}", location)
                if isinstance(node.get("$dynamicAnchor"), str):
                    self._dynamic.setdefault(home, {}).setdefault(node["$dynamicAnchor"], location)
            if draft.has_recursion and node.get("$recursiveAnchor") is True and location == home:
                self._dynamic.setdefault(home, {})[_RECURSIVE] = location
            children = subschemas(node, absent)
            stack.extend([(child, pointer_to(location, *steps), base, home) for steps, child in children])


def _joined(base: str, reference: str, where: str) -> str:
    """A reference against its base URI, if there is one."""
    try:
        joined = urljoin(base, reference) if base else reference
        urldefrag(joined)
        return joined
    except ValueError as error:
        reason = cut(str(error), 300)
        raise InvalidSchemaError(f"{quoted(reference)} is not a reference: {reason}", path=where) from None


def pointer_of(location: str) -> str:
    """The JSON pointer of a location."""
    return location.partition("#")[2]


def unsupported(keyword: str, location: str, reason: str) -> UnsupportedKeywordError:
    """The error that refuses `keyword` of the schema at `location`."""
    return UnsupportedKeywordError(keyword, path=pointer_to(pointer_of(location), keyword), reason=reason)


@lru_cache(maxsize=1)
def _metaschemas() -> dict[str, Any]:
    from jsonschema_specifications import REGISTRY  # noqa: PLC0415  # it reads files

    return {uri.rstrip("#"): REGISTRY[uri].contents for uri in REGISTRY}
