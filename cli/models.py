"""`bough models`: the models on this machine and those to fetch by name; facts about one; removing one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import Any

from ..runtime.checkpoints.fetch import MODELS, default_cache
from ..runtime.checkpoints.hub import is_hub_name, is_remote_file
from ..runtime.checkpoints.inventory import CachedModel, Facts, find, pin_of, places, read_facts, remove
from ..runtime.protocol.errors import ModelError, RequestError
from .parsing.parser import did_you_mean

_HEADINGS = ("NAME", "SIZE", "WEIGHTS", "PARAMETERS", "WHERE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    listing = _action(
        actions, "list", "list the models that are here, and those to fetch by name; as without an action"
    )
    listing.add_argument("--json", action="store_true", help="print a JSON list")
    info = _action(actions, "info", "describe one: files, sizes, format of its weights, and where it came from")
    info.add_argument("name", metavar="NAME", help="as bough models lists it, or the path of a file or folder")
    info.add_argument("--json", action="store_true", help="print a JSON object")
    removing = _action(actions, "remove", "remove one from the disk")
    removing.add_argument("name", metavar="NAME", help="as bough models lists it")
    removing.add_argument(
        "--forget", action="store_true", help="forget its commit and hashes too, and so trust the next pull anew"
    )


def _action(actions: Any, name: str, text: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    return made


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "info":
        _describe(arguments.name, as_json=arguments.json)
    elif arguments.action == "remove":
        _remove(arguments.name, forget=arguments.forget)
    else:
        _list(as_json=getattr(arguments, "json", False))
    return 0


def _list(*, as_json: bool) -> None:
    here = places()
    if as_json:
        print(json.dumps([_record(place) for place in here], indent=2))
        return
    print(
        _table([_HEADINGS, *(_row(place) for place in here)])
        if here
        else f"There is no model in {default_cache()} yet."
    )
    names = [name for name in MODELS if name not in {place.name for place in here}]
    print("\nTo fetch more:" if here else "\nTo fetch one:")
    for name in names:
        print(f"  bough pull {name}  ({shown_bytes(MODELS[name].download_bytes)})")
    print("  bough pull ORGANISATION/NAME:Q4_K_M, or the https address of a .gguf file")


def _row(place: CachedModel) -> tuple[str, ...]:
    size = shown_bytes(place.num_bytes)
    if not place.whole:
        return place.name, size, "-", "-", "broke off: pull it again, and it goes on"
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
        print(f"{key.replace('_', ' '):11} {shown_bytes(value) if key == 'bytes' else value}")


def _tell_of_absent(name: str) -> None:
    """Describes a model that could be fetched by its name. Raises RequestError: there is none."""
    if name not in MODELS:
        raise _no_model(name)
    model = MODELS[name]
    print(f"{name} is not here yet: bough pull {name} fetches {shown_bytes(model.download_bytes)} ({model.file_name})")


def _remove(name: str, *, forget: bool) -> None:
    place = find(name)
    if place is None:
        raise _no_model(name)
    print(f"removed {shown_bytes(remove(place))}: {place.path}")
    pinned, pin = pin_of(name) if is_remote_file(name) or is_hub_name(name) else (None, None)
    if pinned is None or pin is None:
        return
    if forget:
        pinned.unlink(missing_ok=True)
        print("Its commit and hashes are forgotten.")
    else:
        print(f"The next pull takes the same commit and checks the same hashes; bough models remove {name} --forget")


def _no_model(name: str) -> RequestError:
    names = [place.name for place in places()]
    hint = did_you_mean(name, names) or ": bough models lists those that are here"
    if is_remote_file(name) or is_hub_name(name):
        hint = f": bough pull {name} fetches it"
    return RequestError(f"there is no model {name!r} on this machine{hint}", param="name")


def _record(place: CachedModel) -> dict[str, Any]:
    """Facts about a model that is here, by name; those that its files do not say are left out."""
    record: dict[str, Any] = {
        "name": place.name,
        "path": str(place.path),
        "owner": place.owner,
        "bytes": place.num_bytes,
    }
    if not place.whole:
        return record | {"state": "broke off"}
    try:
        facts = read_facts(place.path)
    except ModelError as error:
        return record | {"state": f"cannot be read: {error.message}"}
    record |= {"weights": facts.weights, "parameters": facts.num_parameters, "architecture": facts.architecture}
    record |= {"layers": facts.num_layers, "context": facts.context}
    if place.name in MODELS:
        record["sha256"] = MODELS[place.name].sha256
    elif is_remote_file(place.name) or is_hub_name(place.name):
        _, pin = pin_of(place.name)
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
    """The rows with columns of equal width, the last one as long as it is."""
    listed = list(rows)
    widths = [max(len(row[column]) for row in listed) for column in range(len(listed[0]) - 1)]
    return "\n".join("  ".join((*(map(str.ljust, row, widths)), row[-1])) for row in listed)
