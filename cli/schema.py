"""`bough schema check`: shows how a JSON Schema is enforced and which values it accepts; needs no model."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

from ..constrain import Grammar, GrammarCompiler, GrammarError, JsonSchema, Vocabulary
from ..constrain.accepting import Refusal, walk
from ..constrain.json_schema.parse import checked_formats
from ..constrain.json_schema.validate import violations
from ..constrain.vocabulary.adapters import byte_vocabulary
from ..runtime.checkpoints.locate import locate
from ..runtime.protocol.errors import RequestError, reason
from ..runtime.tokenizer.load import load_tokenizer

_PIECES = re.compile(r'"(?:[^"\\]|\\.)*"|[ \t\n\r]+|[,:]')
_AROUND = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    text = "show whether a schema can be enforced, how, and which values it accepts"
    check = actions.add_parser("check", help=text, description=text[0].upper() + text[1:] + ".")
    check.add_argument("schema", metavar="SCHEMA.json", help="the schema; - reads standard input")
    check.add_argument("instances", nargs="*", default=[], metavar="INSTANCE.json", help="values to check against it")
    check.add_argument("--policy", choices=("exact", "best_effort"), default="exact", help="(default: %(default)s)")
    check.add_argument("--order", choices=("any", "schema"), default="any", help="of properties (default: %(default)s)")
    check.add_argument(
        "--tokenizer",
        "--model",
        metavar="SOURCE",
        help="the model whose tokens to use, as --model of `bough serve` takes it (default: single bytes)",
    )
    check.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """0: the schema compiles and every instance is accepted; 1: not so; 2: a file cannot be read."""
    spec = JsonSchema(_read(arguments.schema), property_order=arguments.order, policy=arguments.policy)
    instances = [(path, _read(path)) for path in arguments.instances]
    vocabulary = _vocabulary(arguments.tokenizer)
    compiler = GrammarCompiler(vocabulary)
    try:
        report = _check(arguments.schema, spec, instances, vocabulary, compiler)
    finally:
        compiler.close()
    if arguments.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        print("\n".join(_lines(report)))
    return 0 if report["compiles"] and all(instance["accepted"] for instance in report["instances"]) else 1


def _check(
    path: str, spec: JsonSchema, instances: list[tuple[str, str]], vocabulary: Vocabulary, compiler: GrammarCompiler
) -> dict[str, Any]:
    wait([compiler.warm()])  # so that it is the schema whose seconds are told
    report: dict[str, Any] = {"schema": path, "compiles": False, "policy": spec.policy, "order": spec.property_order}
    started = time.perf_counter()
    try:
        grammar = compiler.compile(spec)
    except GrammarError as error:
        keyword = {"keyword": error.keyword} if hasattr(error, "keyword") else {}
        refused = {"code": error.code, "message": error.reason, "pointer": error.path, **keyword}
        return {**report, "seconds": time.perf_counter() - started, "error": refused, "instances": []}
    report |= {"compiles": True, "seconds": time.perf_counter() - started}
    receipt = grammar.receipt
    if receipt is not None:
        report |= {"mode": receipt.mode, "enforced": list(receipt.enforced), "checked": list(receipt.checked)}
        report |= {"narrowed": list(receipt.narrowed)}
    report |= {"grammar_bytes": grammar.num_bytes, "min_tokens": grammar.min_tokens()}
    report["instances"] = [_try(name, text, spec, grammar, vocabulary) for name, text in instances]
    return report


def _try(path: str, text: str, spec: JsonSchema, grammar: Grammar, vocabulary: Vocabulary) -> dict[str, Any]:
    """The verdicts of the masks and of the validator on a value. The masks are shown it in each of its layouts."""
    formats = checked_formats(spec.schema, grammar.receipt.checked if grammar.receipt is not None else ())
    found = violations(spec.schema, text, formats=formats)
    report: dict[str, Any] = {"path": path, "valid": not found}
    refusals = [(written, walk(grammar, written, vocabulary)) for written in _layouts(text)]
    passed = any(refusal is None for _, refusal in refusals)
    needs_check = grammar.receipt is not None and bool(grammar.receipt.checked)
    report |= {"masks_accept": passed, "accepted": passed and not (needs_check and found)}
    if not passed:
        written, refusal = max(refusals, key=lambda pair: pair[1].offset if pair[1] is not None else 0)
        assert refusal is not None
        report["refused"] = _refused(written, refusal)
    report["violations"] = [{"pointer": each.pointer, "message": each.message} for each in found]
    return report


def _layouts(text: str) -> Iterator[str]:
    """`text` as it is, in the layout of generated JSON, and as Python writes the value."""
    stripped = text.strip()
    yield stripped
    yield _PIECES.sub(_laid_out, stripped)
    try:
        value = json.loads(stripped)
    except (ValueError, RecursionError):
        return
    yield json.dumps(value, ensure_ascii=False)
    yield json.dumps(value)


def _laid_out(match: re.Match[str]) -> str:
    piece = match[0]
    return piece if piece[0] == '"' else f"{piece} " if piece in ",:" else ""


def _refused(text: str, refusal: Refusal) -> dict[str, Any]:
    data = text.encode(errors="replace")
    before, after = data[: refusal.offset], data[refusal.offset :]
    return {
        "offset": refusal.offset,
        "before": before[-_AROUND:].decode(errors="replace"),
        "after": after[:_AROUND].decode(errors="replace"),
        "allowed": [each.decode(errors="backslashreplace") for each in refusal.allowed],
        "may_end": refusal.may_end,
    }


# What is printed


def _lines(report: dict[str, Any]) -> Iterator[str]:
    if not report["compiles"]:
        error = report["error"]
        yield f"{report['schema']}: refused ({error['code']})"
        yield f"  {error['message']}"
        yield f"  at       {error['pointer'] or 'the root'}"
        return
    yield f"{report['schema']}: compiles in {1000 * report['seconds']:.1f} ms ({report.get('mode', report['policy'])})"
    yield f"  enforced {', '.join(report.get('enforced', ())) or 'nothing'}"
    if report.get("checked"):
        yield f"  checked  {', '.join(report['checked'])} (on the finished value)"
    if report.get("narrowed"):
        places = ", ".join(pointer or "the root" for pointer in report["narrowed"])
        yield f"  narrowed {places} (rare values are left out: their combinations are too many)"
    shortest = "none found" if report["min_tokens"] is None else f"{report['min_tokens']} tokens"
    yield f"  grammar  about {report['grammar_bytes'] / 1000:.0f} kB; shortest value: {shortest}"
    for instance in report["instances"]:
        yield from _instance_lines(instance)


def _instance_lines(instance: dict[str, Any]) -> Iterator[str]:
    verdict = "accepted" if instance["accepted"] else "refused"
    validity = "valid" if instance["valid"] else "invalid"
    yield f"{instance['path']}: {verdict} ({validity} by the schema)"
    refused = instance.get("refused")
    if refused is not None:
        ways = [*_ranges(refused["allowed"]), *(["the end"] if refused["may_end"] else [])]
        yield f"  at byte {refused['offset']}, after {refused['before']!r}: {refused['after'][:20]!r}"
        yield f"  allowed there: {' '.join(ways) or 'nothing'}"
        if instance["valid"]:
            yield "  it is valid, but not in a form that is generated (white space, escapes, order of properties)"
    for violation in instance["violations"]:
        yield f"  {violation['pointer'] or 'the value'}: {violation['message']}"


def _ranges(texts: list[str]) -> list[str]:
    """Lists texts readably: single characters as ranges, at most 40 of the others."""
    codes = sorted(ord(text) for text in texts if len(text) == 1)
    starts = [code for code in codes if code - 1 not in codes]
    stops = [code for code in codes if code + 1 not in codes]
    ranges = [
        repr(chr(start)) if start == stop else f"{chr(start)!r}-{chr(stop)!r}"
        for start, stop in zip(starts, stops, strict=True)
    ]
    return [*ranges, *(repr(text) for text in texts if len(text) > 1)][:40]


def _read(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read ({reason(error)}): check the path", param="schema") from error


def _vocabulary(source: str | None) -> Vocabulary:
    if source is None:
        return byte_vocabulary()
    tokenizer = load_tokenizer(locate(source))
    return tokenizer.vocabulary(tokenizer.vocab_size)
