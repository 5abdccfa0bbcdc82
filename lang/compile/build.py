"""Makes a compiled program of a function: traces it, and optimises what it recorded."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ...runtime.protocol.errors import RequestError
from ...runtime.protocol.template import Template, refs_of
from .compiled import CompiledProgram, Local
from .none_checks import check_none
from .optimise import PASSES, optimise
from .placeholder import Marks
from .result import returned_by
from .signature import open_parameters, parameters_of, stand_ins
from .tracing import telling, trace


def compile_body(
    body: Callable[..., Any],
    known: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    name: str | None = None,
    optimisations: Collection[str] | None = None,
) -> CompiledProgram:
    """Traces a program's body with the arguments in `known`, and placeholders for the others.

    defaults        sampling options of all generations, as `clean_options` gives them
    name            of the program; None: the body's
    optimisations   names of those to apply (see `optimise`); None: all

    Raises:
        CompileError: the body does something that depends on values known only when it runs; it names the line.
        RequestError: there is no such parameter, or no such optimisation.
    """
    _check_passes(body, optimisations)
    names = [parameter.name for parameter in list(inspect.signature(body).parameters.values())[1:]]
    if strange := set(known).difference(names):
        raise RequestError(f"{body.__name__} has no parameter {min(strange)!r}", param=min(strange))
    title = name or body.__name__
    parameters, marks = tuple(parameters_of(body, known)), Marks(title)
    traced = trace(title, body, {**stand_ins(body, known, marks), **known}, defaults, marks)
    returned = returned_by(traced, marks)
    check_none(title, body, known, defaults, traced, returned.data)
    wanted = set(refs_of(returned.data))
    ops = telling(traced.ops, wanted)
    template = Template(
        name=title,
        description=inspect.getdoc(body) or "",
        parameters=parameters,
        ops=optimise(ops, wanted, optimisations) or ops,  # of what nobody reads from, all is what is meant
        result=returned.data,
    )
    given = {one.name: one.default for one in open_parameters(body, known) if one.default is not one.empty}
    return CompiledProgram(template, tools=traced.tools, local=Local(returned.texts, returned.make, given))


def _check_passes(body: Callable[..., Any], optimisations: Any) -> None:
    """Raises unless they are the names of passes: people give the first argument in this place, too."""
    there = ", ".join(PASSES)
    if isinstance(optimisations, Collection) and not isinstance(optimisations, str | bytes | Mapping):
        unknown = [name for name in optimisations if name not in PASSES]
        if not unknown:
            return
        wrong = f"there is no optimisation {unknown[0]!r}; there are {there}"
    elif optimisations is None:
        return
    else:
        wrong = f"compile takes a list of optimisations, of {there}, got {optimisations!r}"
    first = next(iter(list(inspect.signature(body).parameters)[1:]), "name")
    raise RequestError(
        f"{wrong}. Arguments are given by name: {body.__name__}.compile({first}=...)", param="optimisations"
    )
