"""The production engine with programs under a nemesis, on one thread and one clock.

What happens on other threads otherwise, happens here when the nemesis says so: constraints are compiled, masks are
filled, and tools return early, late or never.
"""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np

from bough.constrain import Grammar, Matcher
from bough.constrain.compiler import compile_grammar
from bough.constrain.spec import Choice, GrammarSpec, Regex
from bough.runtime.engine.masks import Filling, MaskFiller, MaskJob
from bough.runtime.programs.engine_machine import EngineMachine
from bough.runtime.programs.executor import Executor
from bough.runtime.programs.state import CallId
from bough.runtime.protocol.errors import ErrorInfo
from bough.runtime.protocol.program import Done, Failed, Op, Program, ProgramEvent
from bough.runtime.protocol.request import Request, RequestOutput
from bough.runtime.protocol.sampling_params import SamplingParams
from bough.runtime.tools.registry import Ticket, ToolCall, ToolRegistry, ToolRunner

from ..runtime.programs.control_programs import ControlPrograms, UpperTool
from ..runtime.programs.oracle import EOS, VOCAB, history_of
from ..support.fakes import byte_tokenizer, fake_engine
from .operations import Dice, Operation, draw

BIAS = MappingProxyType({EOS: 4.0, ord("e"): 4.0})
NUM_PROGRAMS = 24
NUM_REQUESTS = 24
MAX_LIVE = 10
LAST_SUBMISSION = 2
MAX_RUNNING = 4
MAX_STATES = 3
KEYS = ("", "a", "b/x", "b/y")
STEMS = ("system: be brief. ", "system: be kind. ", "few shot: a b c. ")
GRAMMARS: tuple[GrammarSpec, ...] = (Regex("[0-9]{3}-[a-c]{2,8}"), Choice(("yes, certainly", "yes, perhaps", "no")))

MIX = {
    "step": 60, "request": 8, "program": 3, "resume_program": 3, "compile": 6, "masks": 8, "tool": 6,
    "abort": 2, "drop_program": 0.6, "late": 4, "storm": 0.6, "fail": 0.3, "jump": 0.3, "evict_all": 0.6,
    "abort_heard": 0.5,
}  # fmt: skip
FAULTS = ("abort", "drop_program", "late", "storm", "fail", "jump", "evict_all", "abort_heard")


@functools.cache
def compiled(spec: GrammarSpec) -> Grammar:
    engine, _ = fake_engine()
    grammar = compile_grammar(spec, engine._grammars.tokens)
    engine.close()
    return grammar


@functools.cache
def kind(number: int) -> dict[str, Any]:
    """The fields of a kind of request."""
    random = Random(number)
    text = random.choice(STEMS) + "".join(random.choice(("tell ", "me ", "of ")) for _ in range(random.randrange(1, 6)))
    fields: dict[str, Any] = {"prompt": tuple(byte_tokenizer().encode(text)), "stream": number % 2 == 0}
    if number % 6 == 0:
        return {**fields, "sampling": SamplingParams(max_tokens=0), "score_from": random.randrange(1, len(text))}
    if number % 3 == 0:
        grammar = random.choice(GRAMMARS)
        return {**fields, "sampling": SamplingParams(max_tokens=20, temperature=1.2, seed=number), "grammar": grammar}
    sampling = SamplingParams(
        max_tokens=random.randrange(1, 30), temperature=0.0, stop=("tt",) if number % 5 == 0 else ()
    )
    return {**fields, "sampling": sampling}


@functools.cache
def alone(number: int) -> Heard:
    """Returns what a kind of request gets without a cache or anyone beside it."""
    world = EngineWorld(0, calm=True)
    heard = world.submit("alone", number, Dice(1))
    world.settle()
    return heard


@functools.cache
def program(number: int) -> tuple[tuple[tuple[Op, ...], ...], tuple[dict[tuple[int, str], list[str]], ...]]:
    """The submissions of a program, with branches that fail, loops, tools and cancels; and all values after each."""
    writer = ControlPrograms(number, dict(BIAS))
    submissions: list[tuple[Op, ...]] = []
    values: list[dict[tuple[int, str], list[str]]] = []
    for length in (10, 6, 6):
        submissions.append(tuple(writer.stretch(length, cancels=bool(submissions))))
        failed = writer.oracle.failed
        values.append({key: list(texts) for key, texts in writer.oracle.history.items() if key[0] not in failed})
    return tuple(submissions), tuple(values)


@dataclass(eq=False)
class Heard:
    """Outputs of a request; nothing may follow the end. `cut`: something befell it that may end it early."""

    kind: int
    deadline: float | None = None
    outputs: list[RequestOutput] = field(default_factory=list)
    cut: bool = False

    @property
    def over(self) -> bool:
        return bool(self.outputs) and self.outputs[-1].finish is not None

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.tokens]

    @property
    def scores(self) -> list[float]:
        return [round(entry.logprob, 3) for output in self.outputs for entry in output.logprobs or ()]


@dataclass(eq=False)
class Story:
    """A program: its submissions so far, and what was heard of them."""

    id: str
    kind: int
    namespace: str
    submission: int = 0
    events: list[ProgramEvent] = field(default_factory=list)
    running: bool = False
    judged: bool = False
    cut: bool = False
    gone: bool = False

    def __call__(self, event: ProgramEvent) -> None:
        assert self.running, "an event after the terminal one"
        self.events.append(event)
        self.running = not isinstance(event, (Done, Failed))


class SimulatedFiller(MaskFiller):
    """Fills masks in the engine's thread: at once, or when the nemesis says so. Late is what has not been begun."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size, 1)
        self.num_late = 0
        self.late: list[MaskJob] = []

    def _add_threads(self, filling: Filling, num_threads: int) -> None:
        while self.num_late > 0 and filling._queue:
            self.num_late -= 1
            self.late.append(filling._queue.pop())
        filling.work()

    def begin_slow(self, matcher: Matcher, tenant: str, before: Callable[[], None] | None = None) -> MaskJob:
        job = MaskJob(matcher, rows=np.zeros((1, self._words), dtype=np.int32), before=before, tenant=tenant)
        self.late.append(job)
        return job

    def run_late(self) -> int:
        jobs, self.late = self.late, []
        for job in jobs:
            job.run()
        return len(jobs)


class SimulatedTools(ToolRunner):
    """Tools that return when the nemesis says so."""

    def __init__(self) -> None:
        super().__init__()
        self.tickets: list[Ticket] = []

    def start(
        self, tool: ToolCall, arguments: dict[str, Any], done: Callable[[str | ErrorInfo], None], owner: Any = None
    ) -> Ticket:
        ticket = Ticket(tool, arguments, done, owner)
        self.tickets.append(ticket)
        return ticket

    def abandon(self, ticket: Ticket) -> None:
        ticket.abandoned = True

    def finish(self, index: int) -> None:
        """Lets a call return, if anyone waits for it or not."""
        ticket = self.tickets.pop(index)
        text = ticket.tool.call(ticket.arguments)
        assert isinstance(text, str)
        ticket.done(text)


MakeExecutor = Callable[..., Executor]


class EngineWorld:
    """One episode of an engine. `calm`: nothing is shared, late, or small."""

    def __init__(self, seed: int, make_executor: MakeExecutor = Executor, *, calm: bool = False) -> None:
        random = Random(seed)
        self.counts: Counter[str] = Counter()
        self.now = 0.0
        page_size = 1 if calm else random.choice((1, 1, 4))
        settings = {"max_num_seqs": random.choice((1, 4, 16)), "max_batch_tokens": random.choice((1, 8, 64, 512))}
        if calm:
            settings = {"max_num_seqs": 64, "max_batch_tokens": 512}
        num_pages = 4096 if calm else random.choice((420, 800)) // page_size
        ahead = 0 if calm else random.choice((0, 1, 4))
        self.engine, self.model = fake_engine(
            num_pages,
            page_size,
            ahead=ahead,
            mask_patience_s=0.0,
            tenant_weights={"a": 3},
            enable_prefix_caching=not calm,
            **settings,
        )
        self.model.bias = dict(BIAS)
        self.engine._clock = lambda: self.now
        self.filler = self.engine._masks._filler = SimulatedFiller(VOCAB)
        self.compiling: list[tuple[Future[Grammar], GrammarSpec]] = []
        self.engine._grammars.submit = self._compile_later  # type: ignore[method-assign]
        self.engine._grammars.abandon = lambda future: None  # type: ignore[method-assign]
        self.tools = SimulatedTools()
        self.posted: deque[Callable[[], None]] = deque()
        registry = ToolRegistry()
        registry.register(UpperTool())
        post = self.posted.append
        self.machine = EngineMachine(self.engine, lambda: self.now, post=post, runner=self.tools)
        # Without `post` a program's walk is not cut by the time that it takes, which would differ from run to run.
        self.executor = make_executor(self.machine, lambda: self.now, max_states=MAX_STATES, tools=registry)
        self.num_begun = 0
        self.requests: dict[str, Heard] = {}
        self.stories: dict[str, Story] = {}
        self.strike: int | None = None

    @staticmethod
    def draw(seed: int, num_operations: int) -> list[Operation]:
        random = Random(~seed)
        enabled = set(random.sample(FAULTS, random.randint(1, len(FAULTS))))
        mix = {name: share for name, share in MIX.items() if name not in FAULTS or name in enabled}
        return draw(random, mix, num_operations)

    def do(self, operation: Operation) -> None:
        name, bits = operation
        self.counts[name] += 1
        getattr(self, "do_" + name)(Dice(bits))
        self._drain()

    # Operations

    def do_step(self, dice: Dice) -> None:
        self._step()

    def do_request(self, dice: Dice) -> None:
        if len(self.requests) < MAX_LIVE:
            self.submit(str(self.num_begun), dice.below(NUM_REQUESTS), dice)

    def do_program(self, dice: Dice) -> None:
        if sum(story.running for story in self.stories.values()) < MAX_RUNNING:
            story = Story(f"p{self.num_begun}", dice.below(NUM_PROGRAMS), dice.pick(KEYS))
            self.num_begun += 1
            self.stories[story.id] = story
            self._run(story, keep=True)

    def do_resume_program(self, dice: Dice) -> None:
        """Goes on with a state that was kept; the last submission does not keep it."""
        kept = [s for s in self.stories.values() if not s.running and not s.cut and s.id in self.executor._states]
        if kept:
            story = dice.pick(kept)
            story.submission += 1
            self._run(story, keep=story.submission < LAST_SUBMISSION)

    def do_compile(self, dice: Dice) -> None:
        if self.compiling:
            future, spec = self.compiling.pop(dice.below(len(self.compiling)))
            future.set_result(compiled(spec))

    def do_masks(self, dice: Dice) -> None:
        self.counts["late masks"] += self.filler.run_late()

    def do_late(self, dice: Dice) -> None:
        """Masks of the next step are late: one, or all."""
        self.filler.num_late = dice.pick((1, 2, MAX_LIVE))

    def do_tool(self, dice: Dice) -> None:
        if self.tools.tickets:
            index = dice.below(len(self.tools.tickets))
            self.counts["tools that nobody waited for"] += self.tools.tickets[index].abandoned
            self.tools.finish(index)

    def do_abort(self, dice: Dice) -> None:
        if self.requests:
            self._abort(dice.pick(list(self.requests)))

    def do_abort_heard(self, dice: Dice) -> None:
        self.strike = dice.below(1 << 20)

    def do_drop_program(self, dice: Dice) -> None:
        states = list(self.executor._states)
        if states:
            story = self.stories[dice.pick(states)]
            self.counts["dropped running" if story.running else "dropped kept"] += 1
            story.cut = story.gone = True
            self.executor.drop(story.id)

    def do_storm(self, dice: Dice) -> None:
        for sequence in list(self.engine._scheduler.running)[dice.below(3) :]:
            self.engine._scheduler._retract(sequence, [])
            self.counts["retracted by force"] += 1

    def do_fail(self, dice: Dice) -> None:
        """The next pass fails; whoever is live may have been in it."""
        self.model.fails = 1
        self._cut_all()

    def do_jump(self, dice: Dice) -> None:
        self.now += dice.pick((0.5, 30.0))

    def do_evict_all(self, dice: Dice) -> None:
        self.engine._scheduler.cache.flush()

    # What they do

    def submit(self, name: str, number: int, dice: Dice) -> Heard:
        heard = Heard(number, self.now + 20.0 if dice.one_in(10) else None)
        heard.cut = self.model.fails > 0
        self.num_begun += 1
        self.requests[name] = heard
        timeout_s = None if heard.deadline is None else 20.0

        def listen(output: RequestOutput) -> None:
            assert not heard.over, "an event after the terminal one"
            heard.outputs.append(output)
            if heard.over:
                del self.requests[name]
                self._judge(heard)
                if self.strike is not None and self.requests:
                    other = list(self.requests)[self.strike % len(self.requests)]
                    self.strike = None
                    self.counts["abort:heard"] += 1
                    self._abort(other)

        namespace = dice.pick(KEYS)
        self.engine.submit(Request(id=name, timeout_s=timeout_s, namespace=namespace, **kind(number)), listen)
        return heard

    def _abort(self, name: str) -> None:
        heard = self.requests[name]
        heard.cut = True
        sequence = self.engine._live[name].sequence
        place = "compiling" if name in self.engine._admission.compiling else "waiting"
        self.counts["abort:" + (place if sequence.lease is None else "running")] += 1
        self.engine.abort(name)

    def _run(self, story: Story, *, keep: bool) -> None:
        submissions, _ = program(story.kind)
        story.running, story.judged = True, False
        story.cut |= self.model.fails > 0
        resumes = story.submission > 0
        ops = submissions[story.submission]
        self.executor.run(Program(id=story.id, ops=ops, namespace=story.namespace, keep=keep, resume=resumes), story)
        idle = sum(not state.runs for state in self.executor._states.values())
        assert idle <= MAX_STATES + 1, "too many states are kept"

    def _cut_all(self) -> None:
        for heard in self.requests.values():
            heard.cut = True
        for story in self.stories.values():
            story.cut |= story.running

    def _compile_later(self, spec: GrammarSpec, tenant: str = "") -> Future[Grammar]:
        future: Future[Grammar] = Future()
        self.compiling.append((future, spec))
        return future

    def _drain(self) -> None:
        """The turns of the loop that the engine lives in."""
        for _ in range(10_000):
            if not self.posted:
                break
            self.posted.popleft()()
        else:
            raise AssertionError("calls are posted for ever")
        for name, story in list(self.stories.items()):
            if not story.running:
                if not story.judged:
                    self._judge_story(story)
                if name not in self.executor._states:
                    del self.stories[name]
                else:
                    assert story.submission < LAST_SUBMISSION, "a state is kept that nobody asked to keep"

    def _step(self) -> None:
        self.now += 0.01
        if not self.engine.idle:
            self.engine.step()

    # Checks

    def _judge(self, heard: Heard) -> None:
        """A request gets what it would get alone, or a beginning of it if something befell it."""
        finish = heard.outputs[-1].finish
        assert finish is not None
        self.counts["end:" + (finish.reason if finish.error is None else finish.error.code or "")] += 1
        usage = finish.usage
        assert usage.cached_tokens <= usage.prompt_tokens - 1, "a whole prompt was found in the cache"
        late = finish.error is not None and finish.error.code == "generation_timeout"
        assert not late or (heard.deadline is not None and self.now >= heard.deadline), "a time that was not over"
        if heard.outputs and heard.kind >= 0 and not (self.engine._scheduler.cache.sharing):
            return  # this is `alone`
        expected = alone(heard.kind)
        if heard.cut or late:
            assert heard.tokens == expected.tokens[: len(heard.tokens)], "what came was another output's"
            return
        assert finish.error is None, finish.error
        assert (heard.tokens, heard.scores) == (expected.tokens, expected.scores), "the output is another than alone"
        assert usage.completion_tokens == len(heard.tokens), "the usage does not add up"

    def _judge_story(self, story: Story) -> None:
        story.judged = True
        last = story.events[-1]
        self.counts["program:" + type(last).__name__] += 1
        if story.cut or story.gone:
            return
        assert isinstance(last, Done), f"a program has failed: {last}"
        values = history_of(story.events)
        for key, texts in program(story.kind)[1][story.submission].items():
            assert values.get(key) == texts, f"a program's value differs: {key}"

    def check(self) -> None:
        engine, scheduler = self.engine, self.engine._scheduler
        scheduler.cache.check([sequence.lease for sequence in scheduler.running if sequence.lease is not None])
        assert all(sequence.lease is None for sequence in scheduler.waiting), "a waiting sequence holds pages"
        queued = [s.id for s in (*scheduler.waiting, *scheduler.running)] + list(engine._admission.compiling)
        assert sorted(queued) == sorted(engine._live), "a request is forgotten, or remembered after the end"
        calls = set[str | CallId]()
        for state in self.executor._states.values():
            for branch in state.branches.values():
                calls |= branch.running
        tools = self.machine._tools
        assert tools is not None
        assert calls == (engine._live.keys() - self.requests.keys()) | tools.under_way.keys(), "a call that nobody made"
        assert sum(engine._admission._places._of.values()) == len(engine._live), "the keys' requests are miscounted"
        known = {name for name, story in self.stories.items() if not story.gone}
        assert self.executor._states.keys() <= known, "a state of nobody"
        assert all(story.id in self.executor._states for story in self.stories.values() if story.running)
        idle = sum(not story.running for story in self.stories.values())
        assert idle <= MAX_STATES + MAX_RUNNING, "too many states are kept"  # trimmed when the next one begins

    def settle(self) -> None:
        """Without further faults all end in time, with nothing left behind."""
        self.model.fails, self.strike, self.filler.num_late = 0, None, 0
        bound = 100 + 300 * (len(self.requests) + 4 * len(self.stories))
        steps = 0
        while self.requests or any(story.running for story in self.stories.values()):
            for name in ("compile", "masks", "tool"):
                getattr(self, "do_" + name)(Dice(steps))
            self._drain()
            self._step()
            self._drain()
            steps += 1
            assert steps <= bound, f"{[*self.requests, *self.stories]} have not ended after {steps} steps"
        self.check()
        for name in list(self.executor._states):
            self.stories[name].gone = True
            self.executor.drop(name)
        for _ in range(2):
            self.engine.step()
        engine = self.engine
        assert not engine._live and not engine._admission.compiling and engine._scheduler.idle
        assert not engine._masks._deferred and not engine._admission._places._of and not engine._drafts._speculations
        assert engine.flush_cache()
        stats = engine.stats()
        assert stats.free_pages == stats.num_pages, "pages are lost"
        assert not engine._scheduler.cache.tree.roots, "namespaces are left behind"
        assert sum(stats.finished_total.values()) == stats.requests_total, "a request has not one end"
        self.executor.close()
        self.tools.close()
        engine.close()
