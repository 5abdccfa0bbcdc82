"""Forward passes, launched and read: the seam between the engine's step and the device that runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...constrain.matchers.interface import TableMatcher
from ..protocol.sampling_params import SamplingParams
from ..sampler.rows import Draws, Logits, Masks, Row, Sampler
from ..scheduler.batch import Batch, build_batch
from ..scheduler.scheduler import Plan, Work


@dataclass(frozen=True, slots=True)
class DrawSpec:
    """Rule by which a device draws a sequence's tokens by itself: the same at every position.

    `matcher` follows the sequence's constraint, if it has one: it stands where the tokens that the host knows end.
    """

    params: SamplingParams
    seed: int
    matcher: TableMatcher | None = None


class Pass(Protocol):
    """Steps that have been launched. Unless they were launched with specs, `draw` once, and then `read` once."""

    def draw(self, rows: Sequence[Row], masks: Masks | None) -> None:
        """Draws one token for each row of logits, in the order of the plan."""

    def read(self) -> list[Draws]:
        """Returns what was drawn, one entry a plan; waits until it is there."""

    def done(self) -> bool:
        """True if `read` would not wait."""


class PassRunner(Protocol):
    """Runs plans on one device.

    overlaps     a pass can be launched before the one before it is read: `launch` does not wait for the device
    max_steps    plans of one launch at most; 1 if the device cannot draw by itself
    trees        prompts may end as trees of tokens
    exact        a token's logits are the same to the bit whatever is computed beside it
    """

    overlaps: bool
    max_steps: int
    trees: bool
    exact: bool

    def launch(self, plans: Sequence[Plan], specs: Sequence[DrawSpec] | None) -> Pass:
        """Queues `plans`, one after the other.

        With `specs`, one for each work, tokens are drawn on the device as well: all plans then decode the same
        sequences, one token each. Without, there is one plan.
        """

    def draws(self, spec: DrawSpec, work: Work) -> bool:
        """Tells whether the device can draw the token of `work`, to be launched now, and those after it by itself."""

    def prepare(self) -> bool:
        """Does a little of what makes passes to come faster, when there is nothing else to do. False: none is left."""


class LogitsRunner(Protocol):
    """A model: a batch in, the logits [R, V] of its logit rows out, in the host's memory, valid until the next run."""

    def run(self, batch: Batch) -> Logits | None: ...


class DirectPasses:
    """`PassRunner` that computes within `launch`: for the CPU, where nothing would run meanwhile anyway."""

    overlaps = False
    max_steps = 1

    def __init__(
        self,
        model: LogitsRunner,
        page_size: int,
        sampler: Sampler,
        *,
        exact: bool = False,
        prepare: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        prepare    see PassRunner; of itself, there is nothing to do
        """
        self.model = model
        self.trees = page_size == 1
        self.exact = exact
        self._page_size = page_size
        self._sampler = sampler
        self.prepare = prepare

    def launch(self, plans: Sequence[Plan], specs: Sequence[DrawSpec] | None) -> DirectPass:
        assert specs is None and len(plans) == 1
        return DirectPass(self.model.run(build_batch(plans[0], self._page_size)), self._sampler)

    def draws(self, spec: DrawSpec, work: Work) -> bool:
        return False


class DirectPass:
    """Logits that are there already."""

    def __init__(self, logits: Logits | None, sampler: Sampler) -> None:
        self._sampler = sampler
        self._logits = logits
        self._draws = Draws([], [], [])

    def draw(self, rows: Sequence[Row], masks: Masks | None) -> None:
        if self._logits is not None:
            self._draws = self._sampler.sample(self._logits, rows, masks)
            self._logits = None

    def read(self) -> list[Draws]:
        return [self._draws]

    def done(self) -> bool:
        return True
