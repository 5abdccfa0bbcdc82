"""How short a value of a normalised schema can be, and whether it has one at all."""

from __future__ import annotations

import json
import math
from typing import Any

from .schema import Schema

_SHORTEST = {"null": 4, "boolean": 4, "integer": 1, "number": 1, "string": 2, "array": 2, "object": 2}


class Extent:
    """Lower bounds, in characters of JSON, for the values of a schema and of the largest schema inside it.

    `shortest` is infinite only if no finite value satisfies the schema. `largest` is the greatest finite bound of any
    subschema: how much one step into a new value can add to what is left to write.
    """

    def __init__(self, root: Schema) -> None:
        self.largest = 0.0
        definitions = root.get("$defs", {}) if isinstance(root, dict) else {}
        self._definitions = dict.fromkeys(definitions, math.inf)
        changed = True
        while changed:  # bounds fall from infinity until each definition's is that of a finite value
            changed = False
            for name, schema in definitions.items():
                bound = self._bound(schema)
                if bound < self._definitions[name]:
                    self._definitions[name], changed = bound, True
        self.shortest = self._bound(root)

    def _bound(self, node: Schema) -> float:
        if isinstance(node, bool):
            return 1 if node else math.inf
        bounds = [self._of_values(node), *map(self._bound, node.get("allOf", ()))]
        if "$ref" in node:
            bounds.append(self._definitions[node["$ref"].rpartition("/")[2]])
        if "anyOf" in node:
            bounds.append(min(map(self._bound, node["anyOf"]), default=math.inf))
        bound = max(bounds)
        if bound < math.inf:
            self.largest = max(self.largest, bound)
        return bound

    def _of_values(self, node: dict[str, Any]) -> float:
        values = [node["const"]] if "const" in node else node.get("enum")
        if values is not None:
            return min((len(json.dumps(value, ensure_ascii=False)) for value in values), default=math.inf)
        names = node.get("type", list(_SHORTEST))
        names = names if isinstance(names, list) else [names]
        bounds = [float(_SHORTEST[name]) for name in names if name not in ("string", "array", "object")]
        if "string" in names:
            bounds.append(2 + node.get("minLength", 0))
        if "array" in names:
            bounds.append(self._of_array(node))
        if "object" in names:
            bounds.append(self._of_object(node))
        return min(bounds, default=math.inf)

    def _of_array(self, node: dict[str, Any]) -> float:
        prefix = [self._bound(item) for item in node.get("prefixItems", ())]
        rest = self._bound(node["items"]) if "items" in node else 1
        num_items = int(node.get("minItems", 0))
        needed = prefix[:num_items] + ([rest] * (num_items - len(prefix)) if num_items > len(prefix) else [])
        return 2 + sum(needed) + 2 * max(num_items - 1, 0)

    def _of_object(self, node: dict[str, Any]) -> float:
        properties = {name: self._bound(schema) for name, schema in node.get("properties", {}).items()}
        closed = node.get("additionalProperties") is False and "patternProperties" not in node
        if "additionalProperties" in node:
            self._bound(node["additionalProperties"])
        other = math.inf if closed else 1.0
        required = dict.fromkeys(node.get("required", ()))
        return 2 + sum(len(name) + 6 + properties.get(name, other) for name in required)
