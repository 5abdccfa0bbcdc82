"""Gives every schema of a document one modern form in which each `$ref` names its target by JSON pointer."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from .errors import InvalidSchemaError, UnsupportedKeywordError
from .schema import (
    SCHEMA_KEYWORDS,
    SCHEMA_LIST_KEYWORDS,
    SCHEMA_MAP_KEYWORDS,
    Schema,
    check_schema,
    pointer_to,
    subschemas,
)

_DRAFTS_WHERE_REF_STANDS_ALONE = ("draft-03", "draft-04", "draft-06", "draft-07")
_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")


class Document:
    """A checked schema whose subschemas are looked up by JSON pointer, in the vocabulary of draft 2020-12.

    Older forms are rewritten: `definitions`, an array under `items`, `additionalItems`, boolean `exclusiveMinimum`,
    `dependencies`, `$recursiveRef`. References are resolved against `$id` and anchors; nothing is ever fetched.
    """

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._ref_stands_alone = isinstance(root, dict) and any(
            draft in str(root.get("$schema", "")) for draft in _DRAFTS_WHERE_REF_STANDS_ALONE
        )
        self._bases: dict[str, str] = {}
        self._targets: dict[str, str] = {}
        self._dynamic_anchors: list[str] = []
        self._schemas: dict[str, Schema] = {}
        self._find_names(root, "", "")

    def schema(self, pointer: str) -> Schema:
        """The subschema at `pointer` in its modern form. Raises InvalidSchemaError if there is none."""
        if pointer not in self._schemas:
            node = self._node(pointer)
            check_schema(node, pointer)  # it may lie under a keyword that holds no schemas by itself
            self._schemas[pointer] = self._modern(node, pointer)
        return self._schemas[pointer]

    def _find_names(self, node: Any, pointer: str, base: str) -> None:
        """Records what `$id` and anchors name, and the base URI of each schema that sets one."""
        stack = [(node, pointer, base)]
        while stack:
            node, pointer, base = stack.pop()
            if not isinstance(node, dict):
                continue
            identifier = node.get("$id", node.get("id") if self._ref_stands_alone else None)
            if isinstance(identifier, str) and not (self._ref_stands_alone and "$ref" in node):
                base = urljoin(base, identifier)
                self._targets.setdefault(base.rstrip("#"), pointer)
                if "#" not in identifier.rstrip("#"):
                    self._bases[pointer] = base = base.rstrip("#")
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.get(keyword), str):
                    self._targets.setdefault(f"{base}#{node[keyword]}", pointer)
            if "$dynamicAnchor" in node or node.get("$recursiveAnchor") is True:
                self._dynamic_anchors.append(str(node.get("$dynamicAnchor", "")))
            stack.extend((child, pointer_to(pointer, *steps), base) for steps, child in subschemas(node))

    def _base(self, pointer: str) -> tuple[str, str]:
        """The base URI in force at `pointer`, and the pointer of the schema that sets it."""
        while pointer and pointer not in self._bases:
            pointer = pointer.rpartition("/")[0]
        return self._bases.get(pointer, ""), pointer

    def _target(self, reference: str, pointer: str) -> str:
        """The pointer that `reference`, which stands at `pointer`, leads to."""
        where = pointer_to(pointer, "$ref")
        base, base_pointer = self._base(pointer)
        resource, fragment = urldefrag(urljoin(base, reference) if base or "#" not in reference[:1] else reference)
        if resource and resource != base:
            if resource not in self._targets:
                raise InvalidSchemaError(
                    f"reference {reference!r} leads out of the schema; remote ones are not read", path=where
                )
            base, base_pointer = resource, self._targets[resource]
        if fragment and not fragment.startswith("/"):
            if f"{base}#{fragment}" not in self._targets:
                raise InvalidSchemaError(f"reference {reference!r} leads nowhere", path=where)
            return self._targets[f"{base}#{fragment}"]
        target = base_pointer + unquote(fragment)
        try:
            self._node(target)
        except InvalidSchemaError:
            raise InvalidSchemaError(f"reference {reference!r} leads nowhere", path=where) from None
        return target

    def _node(self, pointer: str) -> Any:
        node: Any = self._root
        for step in pointer.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and name in node:
                node = node[name]
            elif isinstance(node, list) and name.isdigit() and int(name) < len(node):
                node = node[int(name)]
            else:
                raise InvalidSchemaError("there is no such subschema", path=pointer)
        return node

    def _modern(self, node: Any, pointer: str) -> Schema:
        if isinstance(node, bool):
            return node
        if "$ref" in node and self._ref_stands_alone:
            return {"$ref": self._target(node["$ref"], pointer)}
        result: dict[str, Any] = {}
        for keyword, value in node.items():
            if keyword in SCHEMA_KEYWORDS:
                result[keyword] = self._modern(value, pointer_to(pointer, keyword))
            elif keyword in SCHEMA_LIST_KEYWORDS:
                result[keyword] = self._modern_list(value, pointer_to(pointer, keyword))
            elif keyword in SCHEMA_MAP_KEYWORDS:
                if keyword not in ("$defs", "definitions"):  # reached through references only
                    result[keyword] = self._modern_map(value, pointer_to(pointer, keyword))
            elif keyword == "$ref":
                result[keyword] = self._target(value, pointer)
            elif keyword in ("$dynamicRef", "$recursiveRef"):
                self._set_dynamic(result, keyword, value, pointer)
            elif keyword == "items":
                where = pointer_to(pointer, keyword)
                old = isinstance(value, list)
                result["prefixItems" if old else "items"] = (self._modern_list if old else self._modern)(value, where)
            elif keyword == "dependencies":
                self._set_dependencies(result, value, pointer)
            elif keyword == "required" and isinstance(value, bool):
                continue  # draft 3 put it beside the property; no later draft gives it a meaning
            else:
                result[keyword] = value
        _set_limits(result)
        rest = result.pop("additionalItems", None)
        if rest is not None and isinstance(node.get("items"), list):
            result["items"] = rest
        return result

    def _modern_list(self, value: list[Any], pointer: str) -> list[Schema]:
        return [self._modern(child, pointer_to(pointer, index)) for index, child in enumerate(value)]

    def _modern_map(self, value: dict[str, Any], pointer: str) -> dict[str, Schema]:
        return {name: self._modern(child, pointer_to(pointer, name)) for name, child in value.items()}

    def _set_dynamic(self, result: dict[str, Any], keyword: str, value: str, pointer: str) -> None:
        """A dynamic reference is a plain one if no two schemas could be meant."""
        if len(self._dynamic_anchors) > 1 or "$ref" in result:
            raise UnsupportedKeywordError(keyword, path=pointer_to(pointer, keyword), reason="it has several targets")
        result["$ref"] = self._target(value, pointer)

    def _set_dependencies(self, result: dict[str, Any], value: dict[str, Any], pointer: str) -> None:
        required = {name: item for name, item in value.items() if isinstance(item, list)}
        schemas = {name: item for name, item in value.items() if not isinstance(item, list)}
        if required:
            result["dependentRequired"] = {**result.get("dependentRequired", {}), **required}
        if schemas:
            modern = self._modern_map(schemas, pointer_to(pointer, "dependencies"))
            result["dependentSchemas"] = {**result.get("dependentSchemas", {}), **modern}


def _set_limits(schema: dict[str, Any]) -> None:
    """Draft 4 wrote `exclusiveMinimum: true` beside `minimum`."""
    for exclusive, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        flag = schema.get(exclusive)
        if isinstance(flag, bool):
            del schema[exclusive]
            if flag and inclusive in schema:
                schema[exclusive] = schema.pop(inclusive)


def check_cycles(document: Document, pointer: str = "") -> None:
    """Refuses references that lead back to themselves without a value in between: they say nothing.

    Raises:
        InvalidSchemaError: there is such a cycle, reachable in place from the schema at `pointer`.
    """
    finished: set[str] = set()
    active: list[str] = []

    def visit(target: str) -> None:
        if target in finished:
            return
        if target in active:
            raise InvalidSchemaError("references lead back to themselves without a value in between", path=target)
        active.append(target)
        stack: list[Schema] = [document.schema(target)]
        while stack:
            node = stack.pop()
            if isinstance(node, bool):
                continue
            if "$ref" in node:
                visit(node["$ref"])
            for keyword in _IN_PLACE:
                value = node.get(keyword, ())
                stack.extend(value if isinstance(value, list) else [value] if keyword in node else ())
        finished.add(active.pop())

    visit(pointer)
