"""Programs done one instruction after the other, without cache, batches or concurrency: the executor's oracle."""

from __future__ import annotations

import codecs
import operator
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field

import torch

from bough.runtime.engine.engine import Engine
from bough.runtime.programs.engine_machine import EngineMachine
from bough.runtime.programs.executor import Executor
from bough.runtime.protocol.condition import Compare, Condition, Count, Either, Every, Matches, Negation, Operand, Times
from bough.runtime.protocol.program import (
    Assign,
    Cancel,
    Delta,
    Done,
    Failed,
    Fork,
    Gen,
    Join,
    JoinMode,
    Op,
    Part,
    Piece,
    Program,
    ProgramEvent,
    Ref,
    Repeat,
    RoleBegin,
    RoleEnd,
    Select,
    Text,
    Use,
    Value,
    When,
)
from bough.runtime.protocol.sampling_params import SamplingParams

from ...support.fakes import FakeRunner, byte_tokenizer, chain, root

VOCAB = 258
EOS = 257
Context = list[int]


class Heard:
    """Everything that was said of one stretch."""

    def __init__(self) -> None:
        self.events: list[ProgramEvent] = []

    def __call__(self, event: ProgramEvent) -> None:
        assert not self.over, "an event after the terminal one"
        self.events.append(event)

    @property
    def over(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], (Done, Failed))

    @property
    def done(self) -> Done:
        assert isinstance(self.events[-1], Done), self.events[-1]
        return self.events[-1]

    @property
    def failed(self) -> Failed:
        assert isinstance(self.events[-1], Failed), self.events[-1]
        return self.events[-1]

    @property
    def values(self) -> dict[tuple[int, str], Value]:
        return {(event.branch, event.name): event for event in self.events if isinstance(event, Value)}

    @property
    def texts(self) -> dict[tuple[int, str], str]:
        return {key: value.text for key, value in self.values.items()}

    @property
    def pieces(self) -> list[Piece]:
        return [event for event in self.events if isinstance(event, Piece)]

    def streamed(self, branch: int, name: str) -> str:
        return "".join(e.text for e in self.events if isinstance(e, Delta) and (e.branch, e.name) == (branch, name))


def history_of(events: Iterable[ProgramEvent]) -> dict[tuple[int, str], list[str]]:
    """All values in order. One that is made anew, by a branch that failed, takes the place of what there was."""
    found: dict[tuple[int, str], list[str]] = {}
    for event in events:
        if isinstance(event, Value):
            texts = found.setdefault((event.branch, event.name), [])
            texts[event.turn :] = [event.text]
            assert len(texts) == event.turn + 1
    return found


def executor_of(engine: Engine, clock: Callable[[], float], *, max_states: int) -> Executor:
    """An executor beside an engine, without tools."""
    return Executor(EngineMachine(engine, clock), clock, max_states=max_states)


def drive(engine: Engine, max_steps: int = 20000) -> None:
    """Steps until nothing is left."""
    for _ in range(max_steps):
        stats = engine.stats()
        if not stats.running and not stats.waiting:
            return
        if engine.idle:
            engine.wait_for_grammar(5.0)
        engine.step()
    raise AssertionError("no progress")


def run(executor: Executor, engine: Engine, ops: list[Op], program_id: str = "p", **fields: object) -> Heard:
    """Runs one stretch to its end."""
    heard = Heard()
    executor.run(Program(id=program_id, ops=tuple(ops), **fields), heard)  # type: ignore[arg-type]
    drive(engine)
    assert heard.over
    return heard


def assert_all_free(engine: Engine) -> None:
    assert engine.flush_cache()
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.free_pages) == (0, 0, stats.num_pages)


class BrokenError(Exception):
    """An instruction cannot be done."""


@dataclass
class Copy:
    """A branch of the oracle."""

    tokens: Context = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    made: Counter[str] = field(default_factory=Counter)
    roles: tuple[str, ...] = ()
    suffix: str | None = None
    forked: tuple[int, int] = (0, 0)
    parent: int | None = None
    isolated: bool = False
    failed: bool = False


class Oracle:
    """Does each instruction when it comes. Greedy generations and likelihood selects over the hash model.

    What fails in an isolated branch ends it; that it is begun anew before makes no difference, since all is greedy.
    `history` are all values that were made, in each branch in order.
    """

    def __init__(
        self, bias: dict[int, float] | None = None, tools: Mapping[str, Callable[..., str]] | None = None
    ) -> None:
        self.branches = {0: Copy()}
        self.history: dict[tuple[int, str], list[str]] = {}
        self._tools = tools or {}
        self._tokenizer = byte_tokenizer()
        self._model = FakeRunner(1, 1, VOCAB)
        self._model.bias = bias or {}

    @property
    def values(self) -> dict[tuple[int, str], str]:
        return {key: texts[-1] for key, texts in self.history.items()}

    @property
    def texts(self) -> dict[int, str]:
        return {branch: "".join(copy.texts) for branch, copy in self.branches.items()}

    @property
    def failed(self) -> set[int]:
        return {branch for branch, copy in self.branches.items() if copy.failed}

    def run(self, ops: Iterable[Op]) -> Oracle:
        """Does one stretch.

        Raises:
            BrokenError: it fails as a whole.
        """
        ops = list(ops)
        for op in ops:
            if isinstance(op, Cancel) and op.branch in self.branches:
                self._fail(op.branch)
        for op in ops:
            if not isinstance(op, Cancel):
                self._try(op)
        return self

    def _try(self, op: Op) -> None:
        if op.branch not in self.branches or self.branches[op.branch].failed:
            return
        try:
            self._do(op, self.branches[op.branch])
        except BrokenError:
            number: int | None = op.branch
            while number is not None and not self.branches[number].isolated:
                number = self.branches[number].parent
            if number is None:
                raise
            self._fail(number)

    def _fail(self, number: int) -> None:
        self.branches[number].failed = True
        for child, copy in self.branches.items():
            if copy.parent == number:
                self._fail(child)

    def _block(self, ops: Iterable[Op], branch: Copy) -> None:
        for op in ops:
            self._try(op)
            if branch.failed:
                return

    def holds(self, condition: Condition, branch: Copy) -> bool:
        match condition:
            case Matches(text=Ref(number, name), pattern=pattern):
                return re.fullmatch(pattern, self._value(number, name), re.DOTALL) is not None
            case Every(of=of):
                return all(self.holds(each, branch) for each in of)
            case Either(of=of):
                return any(self.holds(each, branch) for each in of)
            case Negation(of=inner):
                return not self.holds(inner, branch)
            case Compare(left=left, relation=relation, right=right):
                one, other = (self._operand(side, branch) for side in (left, right))
                if relation == "contains":
                    return str(other) in str(one)
                if isinstance(one, str) and isinstance(other, str):
                    return bool(getattr(operator, relation)(one.strip(), other.strip()))
                try:
                    return bool(getattr(operator, relation)(float(one), float(other)))
                except ValueError:
                    return relation == "ne"
        raise AssertionError(condition)

    def _operand(self, operand: Operand, branch: Copy) -> str | float:
        match operand:
            case Ref(number, name):
                return self._value(number, name)
            case Times(number, name):
                return self.branches[number].made[name]
            case Count(of=of):
                return sum(self.holds(each, branch) for each in of)
        assert isinstance(operand, str | float | int)
        return operand

    def _value(self, number: int, name: str) -> str:
        if number not in self.branches or name not in self.branches[number].values:
            raise BrokenError(f"no value {name}")
        return self.branches[number].values[name]

    def logprobs(self, prompt: Context, tokens: Context) -> list[float]:
        """Log-probabilities of each of `tokens` after `prompt`."""
        found = []
        for index, token in enumerate(tokens):
            found.append(float(self._logits([*prompt, *tokens[:index]]).double().log_softmax(0)[token]))
        return found

    def generate(self, prompt: Context, params: SamplingParams) -> tuple[Context, str]:
        """The tokens that stay, and their text."""
        tokens: Context = []
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = ""
        assert params.max_tokens is not None
        while len(tokens) < params.max_tokens:
            token = int(self._logits([*prompt, *tokens]).argmax())
            if token == EOS:
                break
            tokens.append(token)
            text += decoder.decode(b"".join(self._tokenizer.pieces([token])))
            if any(stop in text for stop in params.stop_strings):
                break
        text += decoder.decode(b"", final=True)
        places = [text.index(stop) for stop in params.stop_strings if stop in text]
        if not places:
            return tokens, text
        return self._keep(tokens, text[: min(places)]), text[: min(places)]

    def _logits(self, context: Context) -> torch.Tensor:
        state = root("")
        for token in context:
            state = chain(state, token)
        return torch.from_numpy(self._model._logits(state, context[-1]))

    def _keep(self, tokens: Context, text: str) -> Context:
        for count in range(len(tokens), -1, -1):
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            said = decoder.decode(b"".join(self._tokenizer.pieces(tokens[:count])))
            if text.startswith(said) and not decoder.getstate()[0]:
                return tokens[:count] + self._tokenizer.encode(text[len(said) :])
        raise AssertionError

    def _do(self, op: Op, branch: Copy) -> None:
        match op:
            case Text(parts=parts):
                self._append(branch, self._write(parts))
            case RoleBegin(role=role):
                assert self._tokenizer.chat is not None
                if branch.suffix is not None:
                    raise BrokenError("a message is open")
                pieces = self._tokenizer.chat.role_pieces(branch.roles, role)
                self._append(branch, pieces.prefix, special=True)
                branch.roles, branch.suffix = (*branch.roles, role), pieces.suffix
            case RoleEnd():
                if branch.suffix is None:
                    raise BrokenError("no message is open")
                self._append(branch, branch.suffix, special=True)
                branch.suffix = None
            case Assign(name=name, parts=parts):
                branch.values[name] = self._write(parts)
                branch.made[name] += 1
            case Gen(name=name, sampling=sampling):
                tokens, text = self.generate(branch.tokens, sampling)
                self._add(branch, op.branch, name, tokens, text)
            case Select(name=name, choices=choices):
                encoded = [self._tokenizer.encode(choice) for choice in choices]
                scores = [sum(self.logprobs(branch.tokens, tokens)) for tokens in encoded]
                best = scores.index(max(scores))
                self._add(branch, op.branch, name, encoded[best], choices[best])
            case _:
                self._control(op, branch)

    def _control(self, op: Op, branch: Copy) -> None:
        match op:
            case Use(name=name, tool=tool, arguments=arguments, append=append):
                text = self._tools[tool](**{key: self._write(parts) for key, parts in arguments})
                self._add(branch, op.branch, name, self._tokenizer.encode(text) if append else [], text, append=append)
            case When(condition=condition, then=then, otherwise=otherwise):
                self._block(then if self.holds(condition, branch) else otherwise, branch)
            case Repeat(body=body, until=until, at_most=at_most):
                for turn in range(at_most):
                    if turn and self.holds(until, branch):
                        break
                    self._block(body, branch)
                    if branch.failed:
                        break
            case Cancel():
                self._fail(op.branch)
            case Fork(children=children, isolated=isolated):
                for number in children:
                    copy = self.branches[number] = deepcopy(branch)
                    copy.forked, copy.made = (len(branch.tokens), len(branch.texts)), Counter()
                    copy.parent, copy.isolated, copy.failed = op.branch, isolated, False
            case Join(children=children, mode=mode):
                for child in (self.branches[c] for c in children if mode == "append"):
                    if child.failed:
                        continue
                    branch.tokens += child.tokens[child.forked[0] :]
                    branch.texts += child.texts[child.forked[1] :]
                    branch.values = child.values | branch.values

    def _write(self, parts: tuple[Part, ...]) -> str:
        return "".join(
            part if isinstance(part, str) else self._value(part.branch, part.name)  # type: ignore[union-attr]
            for part in parts
        )

    def _append(self, branch: Copy, text: str, *, special: bool = False) -> None:
        branch.tokens += self._tokenizer.encode(text, special=special)
        branch.texts.append(text)

    def _add(self, branch: Copy, number: int, name: str, tokens: Context, text: str, *, append: bool = True) -> None:
        branch.tokens += tokens
        if append:
            branch.texts.append(text)
        branch.values[name] = text
        branch.made[name] += 1
        self.history.setdefault((number, name), []).append(text)


def random_program(seed: int, num_ops: int = 40) -> list[Op]:
    """Forks of forks, references across branches, joins whose children go on, messages; names are unique."""
    rng = random.Random(seed)
    ops: list[Op] = [Text(0, ("Once upon a time, ",))]
    children: dict[int, list[int]] = {0: []}
    open_roles: set[int] = set()
    made: list[Ref] = []
    while len(ops) < num_ops:
        branch = rng.choice(list(children))
        match rng.choices(("text", "gen", "select", "assign", "fork", "join", "role"), (5, 6, 2, 1, 2, 2, 3))[0]:
            case "text":
                parts: list[str | Ref] = [rng.choice(["and so ", "ünd 日本 ", "🦊.", "\n", ""])]
                parts += rng.sample(made, min(len(made), rng.randrange(3)))
                ops.append(Text(branch, tuple(parts)))
            case "gen":
                made.append(Ref(branch, f"g{len(ops)}"))
                stop = rng.choice([(), (), ("e", "A"), ("\ufffd\ufffd",)])
                sampling = SamplingParams(max_tokens=rng.randrange(1, 9), temperature=0.0, stop=stop)
                ops.append(Gen(branch, made[-1].name, sampling))
            case "select":
                made.append(Ref(branch, f"s{len(ops)}"))
                ops.append(Select(branch, made[-1].name, tuple(rng.sample(["yes", "no", "né", "yes!", "x"], 3))))
            case "assign":
                made.append(Ref(branch, f"a{len(ops)}"))
                ops.append(Assign(branch, made[-1].name, (rng.choice(["one", "zwölf"]),)))
            case "fork" if len(children) < 8:
                new = tuple(range(len(children), len(children) + rng.randrange(1, 4)))
                ops.append(Fork(branch, new))
                children[branch] += new
                children |= {child: [] for child in new}
                open_roles |= set(new) if branch in open_roles else set()
            case "join" if children[branch] and branch not in open_roles:
                closed = [child for child in children[branch] if child not in open_roles]
                ops.append(Join(branch, tuple(rng.sample(closed, rng.randrange(len(closed) + 1))), rng.choice(MODES)))
            case "role" if branch in open_roles:
                ops.append(RoleEnd(branch))
                open_roles.discard(branch)
            case "role":
                ops.append(RoleBegin(branch, rng.choice(["system", "user", "assistant"])))
                open_roles.add(branch)
    return ops


MODES: tuple[JoinMode, ...] = ("gather", "append")
