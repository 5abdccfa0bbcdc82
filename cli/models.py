"""`bough models`: lists the models on this machine and those that can be pulled; describes or removes one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import Any

from ..runtime.checkpoints.fetch import MODELS, default_cache
from ..runtime.checkpoints.hub import is_hub_name, is_remote_file
from ..runtime.checkpoints.inventory import (
    CachedModel,
    Facts,
    find,
    pin_of,
    place_of_pin,
    places,
    read_facts,
    remove,
)  # fmt: skip
from ..runtime.protocol.errors import ModelError, RequestError, did_you_mean, printable
from .parsing.parser import CommandParser

_HEADINGS = ("NAME", "SIZE", "WEIGHTS", "PARAMETERS", "WHERE")


def add_arguments(parser: CommandParser) -> None:
    parser.rewrite = _with_action
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = _action(actions, "list", "list the models on this machine and those that can be pulled (the default)")
    info = _action(actions, "info", "describe a model: files, sizes, weight format, and where it came from")
    for one, printed in ((listing, "list"), (info, "object")):  # suppressed, so that --json may stand before the action
        one.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=f"print a JSON {printed}")
    info.add_argument("name", metavar="NAME", help="a name from the list, or the path of a file or folder")
    removing = _action(actions, "remove", "delete a model from the disk")
    removing.add_argument("name", metavar="NAME", help="a name from the list")
    removing.add_argument(
        "--forget", action="store_true", help="delete its pinned commit and hashes too: the next pull is trusted anew"
    )


def _with_action(words: list[str], _: frozenset[str]) -> list[str]:
    """Words of a command line, with the action that is meant where none is named."""
    named = any(word in ("list", "info", "remove", "-h", "--help") for word in words)
    return words if named or (words and not words[0].startswith("-")) else ["list", *words]


def _action(actions: Any, name: str, text: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    return made


def run(arguments: argparse.Namespace) -> int:
    as_json: bool = getattr(arguments, "json", False)
    if arguments.action == "info":
        _describe(arguments.name, as_json=as_json)
    elif arguments.action == "remove":
        if as_json:
            raise RequestError("--json is for list and info: leave it out", param="json")
        _remove(arguments.name, forget=arguments.forget)
    else:
        _list(as_json=as_json)
    return 0


def _list(*, as_json: bool) -> None:
    here = places()
    if as_json:
        print(json.dumps([_record(place) for place in here], indent=2))
        return
    print(
        _table([_HEADINGS, *(_row(place) for place in here)])
        if here
        else f"There are no models in {default_cache()} yet."
    )
    names = [name for name in MODELS if name not in {place.name for place in here}]
    print("\nTo get more:" if here else "\nTo get one:")
    for name in names:
        print(f"  bough pull {name}  ({shown_bytes(MODELS[name].download_bytes)})")
    print("  bough pull ORGANISATION/NAME:Q4_K_M, or the https:// address of a .gguf file")


def _row(place: CachedModel) -> tuple[str, ...]:
    size = shown_bytes(place.num_bytes)
    if not place.whole:
        return place.name, size, "-", "-", "incomplete: pull it again to resume"
    try:
        facts = read_facts(place.path)
    except ModelError as error:
        return place.name, size, "-", "-", f"cannot be read: {error.message}"
    where = place.owner if place.owner.startswith("package ") else str(place.path)
    return place.name, size, facts.weights, _parameters(facts), where


def _describe(name: str, *, as_json: bool) -> None:
    place = find(name)
    if place is None:
        _tell_of_absent(name)
        return
    record = _record(place)
    if as_json:
        print(json.dumps(record, indent=2))
        return
    for key, value in record.items():
        text = shown_bytes(value) if key == "bytes" else printable(str(value))
        print(f"{key.replace('_', ' '):12} {text}")


def _tell_of_absent(name: str) -> None:
    """Describes a model that could be fetched by its name. Raises RequestError: there is none."""
    if name not in MODELS:
        raise _no_model(name)
    model = MODELS[name]
    size = shown_bytes(model.download_bytes)
    print(f"{name} is not on this machine: bough pull {name} downloads {size} ({model.file_name})")


def _remove(name: str, *, forget: bool) -> None:
    place = find(name)
    if place is None:
        raise _no_model(name)
    print(printable(f"removed {shown_bytes(remove(place))}: {place.path}"))
    pinned = place_of_pin(place.name) if is_remote_file(place.name) or is_hub_name(place.name) else None
    if pinned is None or not pinned.exists():
        return
    if forget:
        pinned.unlink(missing_ok=True)
        print("Its pinned commit and hashes are deleted too.")
    else:
        print(f"Its pin stays: the next pull must bring the same commit and hashes ({pinned}; --forget deletes it too)")


def _no_model(name: str) -> RequestError:
    hint = did_you_mean(name, [*(place.name for place in places()), *MODELS]) or ": bough models lists those that are"
    if name in MODELS or is_remote_file(name) or is_hub_name(name):
        hint = f": bough pull {name} downloads it"
    return RequestError(f"there is no model {name!r} on this machine{hint}", param="name")


def _record(place: CachedModel) -> dict[str, Any]:
    """Facts about a model that is here, by name; those that its files do not say are left out. Raises ModelError: the
    user named a path of what is no model."""
    record: dict[str, Any] = {
        "name": place.name,
        "path": str(place.path),
        "owner": place.owner,
        "bytes": place.num_bytes,
    }
    if not place.whole:
        return record | {"state": "incomplete"}
    try:
        facts = read_facts(place.path)
    except ModelError as error:
        if place.owner == "path":
            raise
        return record | {"state": f"cannot be read: {error.message}"}
    record |= {"weights": facts.weights, "parameters": facts.num_parameters, "architecture": facts.architecture}
    record |= {"layers": facts.num_layers, "context": facts.context}
    if place.name in MODELS:
        record["sha256"] = MODELS[place.name].sha256
    elif is_remote_file(place.name) or is_hub_name(place.name):
        pin = pin_of(place.name)
        if pin is not None:
            record["revision"] = pin.revision
            hashes = [file.sha256 for file in pin.files.values()]
            record["sha256"] = hashes[0] if len(hashes) == 1 else None
    return {key: value for key, value in record.items() if value not in (None, "")}


def _parameters(facts: Facts) -> str:
    count = facts.num_parameters
    if count is None:
        return "-"
    return f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:.0f} M" if count >= 1e6 else str(count)


def shown_bytes(count: int) -> str:
    """Returns a size in the unit that suits it."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}" if count < 10 * factor else f"{count / factor:.0f} {unit}"
    return f"{count} B"


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    """The rows with columns of equal width, the last one as long as it is. What files say of themselves is printed
    without what a terminal would obey."""
    listed = [tuple(printable(" ".join(cell.split())) for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in listed) for column in range(len(listed[0]) - 1)]
    return "\n".join("  ".join((*(map(str.ljust, row, widths)), row[-1])) for row in listed)
