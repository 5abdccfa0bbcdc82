"""Validation of templates: reads one as a call would, so that a template that can never run is refused early."""

from __future__ import annotations

from collections.abc import Mapping

from ...constrain.errors import GrammarError
from ...constrain.lower import lower
from ...constrain.spec import GrammarSpec, Structural
from ..programs.validate import MAX_CHOICES, SubmissionReader
from ..protocol.condition import Condition, Hole, Operand
from ..protocol.errors import RequestError
from ..protocol.patterns import PatternCache
from ..protocol.program import Gen, Select, walk
from ..protocol.template import Template
from ..tools.registry import ToolCall
from .fill import TOO_DEEP
from .rewrite import Parts, joined, rewrite, with_operands


def rehearse(template: Template, tools: Mapping[str, ToolCall]) -> None:
    """Reads the instructions with empty holes; `tools` are those that the program could call.

    Raises:
        RequestError: an instruction is not well-formed; the message names it.
    """
    try:
        ops = rewrite(template.ops, _Blank())
    except RecursionError as error:
        raise RequestError(TOO_DEEP, code="invalid_program", param="ops") from error
    reader = SubmissionReader({0: True}, tools, PatternCache())
    try:
        reader.read(ops)
    except RequestError as error:
        raise _located(error, reader.index) from error
    seen: set[GrammarSpec] = set()
    for index, op in enumerate(walk(ops)):
        if isinstance(op, Select) and (not op.choices or not all(op.choices) or len(op.choices) > MAX_CHOICES):
            message = f"instruction {index}: a select needs 1 to {MAX_CHOICES} choices, and none of them may be empty"
            raise RequestError(message, code="invalid_program", param="ops")
        if isinstance(op, Gen) and op.grammar is not None and op.grammar not in seen:
            seen.add(op.grammar)
            _check_grammar(op.grammar, index)


def _check_grammar(grammar: GrammarSpec, index: int) -> None:
    """Raises RequestError if the grammar is invalid. Does not check that it can be compiled for a model."""
    if isinstance(grammar, Structural):
        for tag in grammar.tags:
            if tag.content is not None:
                _check_grammar(tag.content, index)
        return
    try:
        lower(grammar)
    except (GrammarError, ValueError, RecursionError) as error:
        code = error.code if isinstance(error, GrammarError) else "invalid_grammar"
        raise RequestError(f"instruction {index}: {str(error)[:500]}", code=code, param="ops") from error


def _located(error: RequestError, index: int) -> RequestError:
    if error.message.startswith("instruction "):
        return error
    return RequestError(f"instruction {index}: {error.message}", code=error.code, param=error.param)


class _Blank:
    """Fills each hole with nothing."""

    def parts(self, parts: Parts) -> Parts:
        return joined("" if isinstance(part, Hole) else part for part in parts)

    argument = parts

    def condition(self, condition: Condition) -> Condition:
        return with_operands(condition, _blank)


def _blank(operand: Operand) -> Operand:
    return "" if isinstance(operand, Hole) else operand
