"""Checks how the code is laid out: entries a folder, cycles, fragments; lists what is large or bears the same name.

    python scripts/house.py [--strict] [--against REV]

Rules, which fail: a folder has at most 16 entries; no files and no folders import one another in a circle, at any
depth; no module is a fragment, that is, each is imported by two others, or has a test of its name, or is the door of
its folder (named like it, `__init__`, `__main__`, or an entry point), or stands in ALONE with its reason.

How complex a function may be is ruff's affair. With `--strict`, as `make lint` has it, fragments, docstrings that begin
like a question (What, Who, Whether) instead of with a verb or a noun of the field, classes over 15 attributes of state
and class names that one folder tree uses twice break the rules too. Files over 700 lines are a warning. `--against`
shows the lines of each folder beside those of a revision.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

MAX_ENTRIES = 16
MAX_LINES = 700
MAX_ATTRIBUTES = 15

PACKAGE = ("benchmarks", "cli", "constrain", "kernels", "lang", "radix", "runtime", "server")
FOLDERS = (*PACKAGE, "examples", "scripts", "tests")
COUNTED = {".py", ".c", ".h", ".html", ".css", ".js", ".j2", ".jinja"}

COMMANDS = ("main", "bench", "chat", "completion", "deploy", "models", "pull", "run", "schema", "serve")

RIDDLES = re.compile(r"\W*(What|Who|Whose|Whether|How|Where|Which|When|Why|Nobody|Of|As) ")
"""Beginnings of docstrings that leave open what is described."""

DATA = frozenset({"tests/data"})
"""Folders of data, trees and all, that may have any number of entries."""

ALONE: Mapping[str, str] = {
    "benchmarks/language/programs.py": "a server loads it by name, for the tool of its programs",
    "constrain/matchers/tagged/matcher.py": "test_compile.py beside it tests both the matcher and its compiler",
    "constrain/regex/number_texts.py": "with numbers.py, which alone imports it, over 700 lines",
    "kernels/sampling/logits.py": "with sample.py, which alone imports it, over 700 lines",
    "runtime/programs/engine_machine.py": "the engine's side of the port; its tests bear the names of what it serves",
}
"""Modules that would be fragments, and why each is one nevertheless."""

ENTRY_POINTS = frozenset({
    "constrain/workers/worker.py", "kernels/compile_check.py", "lang/backends/testing.py",
    "runtime/client/engine_process.py", *(f"cli/{command}.py" for command in COMMANDS),
    *(f"benchmarks/{name}.py" for name in ("programs", "speculation", "step", "throughput")),
    *(f"benchmarks/gpu/cases/{name}.py" for name in ("ceilings", "kernels", "layers")),
})  # fmt: skip
"""Modules that are started by name: with `python -m`, as pytest's plugin, as commands of `bough`, as benchmarks."""

SIDES = "benchmarks/peers/sides/peer_"
"""Beginning of the modules that a table names and the interpreter of a peer loads."""


@dataclass
class House:
    """The repository at `root`: its files by path, relative to it and with slashes."""

    root: Path
    paths: list[str]
    trees: dict[str, ast.Module] = field(default_factory=dict)

    @classmethod
    def at(cls, root: Path, *, folders: Iterable[str] = FOLDERS) -> House:
        """Reads what git tracks or would track; everything, where there is no repository."""
        command = ["git", "ls-files", "-co", "--exclude-standard", "--deduplicate", *folders]
        if (root / ".git").exists():
            listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()
        else:
            listed = [str(p.relative_to(root)) for folder in folders for p in (root / folder).rglob("*") if p.is_file()]
        return cls(root, sorted(path for path in listed if (root / path).is_file() and "__pycache__" not in path))

    @cached_property
    def modules(self) -> dict[str, ast.Module]:
        """The syntax trees of the package's files."""
        return {path: self._tree(path) for path in self.paths if path.endswith(".py") and path.split("/")[0] in PACKAGE}

    def _tree(self, path: str) -> ast.Module:
        """The syntax tree of a file, read once."""
        if path not in self.trees:
            self.trees[path] = ast.parse((self.root / path).read_text())
        return self.trees[path]

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """The files of the package that each of its files imports, anywhere in it."""
        return {path: {*self._imported(path, tree)} - {path} for path, tree in self.modules.items()}

    def _imported(self, path: str, tree: ast.Module) -> Iterator[str]:
        package = PurePosixPath(path).parent.parts
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            base = [part for part in base if part]
            for alias in node.names:
                yield from self._file([*base, alias.name]) or self._file(base)

    def _file(self, parts: list[str]) -> list[str]:
        name = "/".join(parts)
        return [path for path in (f"{name}.py", f"{name}/__init__.py") if path in self.modules]

    def lines(self, path: str) -> int:
        return (self.root / path).read_bytes().count(b"\n")

    # Rules

    def entries(self) -> Counter[str]:
        """Counts the files and folders in each folder, `__init__.py` aside."""
        found: dict[str, set[str]] = defaultdict(set)
        for path in self.paths:
            parts = path.split("/")
            for depth in range(1, len(parts)):
                if parts[depth] != "__init__.py":
                    found["/".join(parts[:depth])].add(parts[depth])
        inside = tuple(f"{folder}/" for folder in DATA)
        return Counter({folder: len(e) for folder, e in found.items() if not f"{folder}/".startswith(inside)})

    def cycles(self) -> list[list[str]]:
        """Circles of siblings, files or folders with all they hold, that import one another; each folder's own."""
        edges: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for path, targets in self.imports.items():
            for target in targets:
                here, there = path.split("/"), target.split("/")
                depth = next(i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b)
                if "__init__.py" not in (here[depth], there[depth]):  # the door speaks for the folder
                    parent = "/".join(here[:depth])
                    edges[parent]["/".join(here[: depth + 1])].add("/".join(there[: depth + 1]))
        return [sorted(circle) for graph in edges.values() for circle in circles(graph)]

    def fragments(self) -> list[str]:
        """Modules that hold no idea of their own; see the module's docstring."""
        return [path for path in self.alone() if path not in ALONE]

    def described(self, fragment: str) -> str:
        """A fragment's lines, and those that it would have with the module that alone imports it."""
        users = [path for path, targets in self.imports.items() if fragment in targets]
        total = self.lines(fragment) + sum(map(self.lines, users))
        return f"{fragment}: {self.lines(fragment)} lines" + "".join(f"; {total} with {user}" for user in users)

    def alone(self) -> list[str]:
        """Fragments, and what would be one without its reason in ALONE."""
        importers = Counter(target for targets in self.imports.values() for target in targets)
        importers.update(target for target in self._public())
        tests = {path for path in self.paths if path.startswith("tests/")}
        return [
            path for path in self.modules if importers[path] < 2 and not _is_door(path) and not _has_test(path, tests)
        ]

    def _public(self) -> Iterator[str]:
        """The files that the facade, or what stands around the package, imports."""
        others = [path for path in ("__init__.py",) if (self.root / path).is_file()]
        others += [
            path for path in self.paths if path.endswith(".py") and path.split("/")[0] in ("examples", "scripts")
        ]
        for other in others:
            for node in ast.walk(self._tree(other)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bough."):
                    yield from self._file((node.module or "").split(".")[1:])

    def riddles(self) -> list[str]:
        """Docstrings, of the tests too, that begin like a question; with file and line."""
        trees = {path: self._tree(path) for path in self.paths if path.endswith(".py")}
        return [
            f"{path}:{node.lineno} {node.value.value.strip().splitlines()[0]}"
            for path, tree in trees.items()
            for node in _statements(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if isinstance(node.value.value, str) and RIDDLES.match(node.value.value)
        ]

    # Lists

    def long_files(self) -> list[tuple[int, str]]:
        """Files over 700 lines, the longest first."""
        sizes = [
            (len((self.root / path).read_text().splitlines()), path) for path in self.paths if path.endswith(".py")
        ]
        return sorted(((size, path) for size, path in sizes if size > MAX_LINES), reverse=True)

    def large_classes(self) -> list[tuple[int, str]]:
        """Classes with more than 15 attributes that change; values (frozen, or on the wire) have none."""
        found = []
        for path, tree in self.modules.items():
            values = set(VALUES)
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and values.isdisjoint(map(base_name, node.bases)):
                    found.append((len(attributes(node)), f"{path}:{node.lineno} {node.name}"))
                elif isinstance(node, ast.ClassDef):
                    values.add(node.name)
        return sorted(((count, where) for count, where in found if count > MAX_ATTRIBUTES), reverse=True)

    def shared_names(self) -> dict[str, list[str]]:
        """Class names that several modules of one tree define, as `tree.Name`, and where."""
        found: dict[str, list[str]] = defaultdict(list)
        for path, tree in self.modules.items():
            for name in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}:
                found[f"{path.split('/')[0]}.{name}"].append(path)
        return {name: paths for name, paths in sorted(found.items()) if len(paths) > 1}


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """The strongly connected parts of `graph` with more than one node."""
    reach = {node: _reached(graph, node) for node in graph}
    parts = {frozenset({other for other in reached if node in reach.get(other, ())}) for node, reached in reach.items()}
    return [set(part) for part in parts if len(part) > 1]


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    left = [start]
    while left:
        for node in graph.get(left.pop(), ()):
            if node not in found:
                found.add(node)
                left.append(node)
    return found


def _is_door(path: str) -> bool:
    *_, folder, name = path.split("/")
    named = name in (f"{folder}.py", "__init__.py", "__main__.py") or path in ENTRY_POINTS
    return named or path.startswith(SIDES)


def _has_test(path: str, tests: set[str]) -> bool:
    """A test of the module's name stands in the folder of tests that mirrors the module's, or in one above it."""
    *folders, name = path.removesuffix(".py").split("/")
    places = ["/".join(["tests", *folders[:depth]]) for depth in range(1, len(folders) + 1)]
    names = {f"test_{name}.py", f"test_{folders[-1]}_{name}.py", f"test_{name}_{folders[-1]}.py"}
    return any(f"{place}/{test}" in tests for place in places for test in names)


def _statements(owner: ast.AST) -> Iterator[ast.AST]:
    """Yields the statements within `owner`, at any depth, and none of the expressions in them."""
    for field_name in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(owner, field_name, None)
        for node in inner if isinstance(inner, list) else ():
            yield node
            yield from _statements(node)


VALUES = ("Struct", "NamedTuple", "Protocol", "TypedDict")
"""Bases of classes whose instances are values, as those of classes that extend them in their module."""


def base_name(base: ast.expr) -> str:
    return ast.unparse(base).split(".")[-1]


def attributes(node: ast.ClassDef) -> set[str]:
    """The attributes of a class whose instances change."""
    if any("frozen=True" in ast.unparse(decorator) for decorator in node.decorator_list):
        return set()
    fields = {
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and "ClassVar" not in ast.unparse(item)
    }
    written = {
        target.attr
        for target in ast.walk(node)
        if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store)
        if isinstance(target.value, ast.Name) and target.value.id == "self"
    }
    return fields | written


# Lines


def lines_now(root: Path) -> Counter[str]:
    """Lines by file of what is counted."""
    paths = [path for path in House.at(root).paths if Path(path).suffix in COUNTED]
    return Counter({path: (root / path).read_bytes().count(b"\n") for path in paths})


def lines_at(root: Path, revision: str) -> Counter[str]:
    """The same, as it was at a revision."""

    def git(*command: str, given: str = "") -> bytes:
        return subprocess.run(["git", *command], cwd=root, check=True, capture_output=True, input=given.encode()).stdout

    tree = [line.split("\t") for line in git("ls-tree", "-r", revision, *FOLDERS).decode().splitlines()]
    objects = {path: info.split()[2] for info, path in tree if Path(path).suffix in COUNTED}
    answers = git("cat-file", "--batch", given="".join(f"{name}\n" for name in objects.values()))
    found: Counter[str] = Counter()
    start = 0
    for path in objects:
        head = answers.index(b"\n", start) + 1
        stop = head + int(answers[start:head].split()[2])
        found[path] = answers.count(b"\n", head, stop)
        start = stop + 1
    return found


def by_folder(lines: Counter[str]) -> Counter[str]:
    total: Counter[str] = Counter()
    for path, count in lines.items():
        top = path.split("/")[0]
        total[top] += count
        total["tests" if top == "tests" else "source"] += count if top != "tests" else 0
    return total


def print_lines(root: Path, revision: str | None) -> None:
    now, before = by_folder(lines_now(root)), by_folder(lines_at(root, revision)) if revision else None
    for folder in (*FOLDERS, "source"):
        change = f"{before[folder]:8}  {now[folder] - before[folder]:+}" if before is not None else ""
        print(f"  {folder:12}{now[folder]:8}{change}")


# The command


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--strict", action="store_true", help="fail for fragments, riddles, large classes and shared names, too"
    )
    parser.add_argument("--against", metavar="REV", help="show the lines at a revision beside those of now")
    options = parser.parse_args()
    root = Path(__file__).resolve().parent.parent
    house = House.at(root)
    broken = report_rules(house, strict=options.strict)
    report_lists(house)
    print(f"Lines now{f', at {options.against}, and the difference' if options.against else ''}:")
    print_lines(root, options.against)
    return 1 if broken else 0


def report_rules(house: House, *, strict: bool) -> bool:
    """Prints what breaks the rules; true if that is an error."""
    crowded = {folder: count for folder, count in house.entries().items() if count > MAX_ENTRIES}
    cycles, fragments = house.cycles(), house.fragments()
    show(f"Folders with more than {MAX_ENTRIES} entries", [f"{folder}: {count}" for folder, count in crowded.items()])
    show("Circles of imports", [" <-> ".join(circle) for circle in cycles])
    show("Fragments", [house.described(path) for path in sorted(fragments, key=house.lines)])
    show("Docstrings that begin like a question", riddles := house.riddles())
    large = [f"{where}: {count}" for count, where in house.large_classes()]
    shared = [f"{name}: {', '.join(paths)}" for name, paths in house.shared_names().items()]
    show(f"Classes over {MAX_ATTRIBUTES} attributes", large)
    show("Class names used twice", shared)
    show("Unnecessary reasons in ALONE", stale := [path for path in ALONE if path not in house.alone()])
    return bool(crowded or cycles or (strict and (fragments or riddles or large or shared or stale)))


def report_lists(house: House) -> None:
    """Prints what is worth a look, and no error."""
    show(f"Files over {MAX_LINES} lines", [f"{path}: {count}" for count, path in house.long_files()])


def show(title: str, lines: list[str]) -> None:
    print(f"{title}: {len(lines)}")
    print("".join(f"  {line}\n" for line in lines), end="")


if __name__ == "__main__":
    sys.exit(main())
