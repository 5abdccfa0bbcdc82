"""The step: admission, masks, drafts, one pass, and what each request makes of its tokens.

What may delay a constrained sequence:

- its grammar is being compiled (`Admission.compiled`);
- its mask is late (`MaskStage.finish`), or its tenant has too many late masks, so that slower threads fill it
  (`MaskStage.start`), or its pass failed (`abandon`); other sequences of the step wait for it at most twice as long
  as the mask's patience (`MaskStage`), then go on;
- its mask is begun only once the step before has been read, where that was unread when the pass was launched
  (`Engine._draw`);
- near the end of its tokens, only a search tells whether the drawn one still leads to an end (`Generation.take`;
  `MaskStage.defer_undecided` waits for it);
- its grammar put another token in the place of the drawn one, so that steps in flight are void (`Scheduler.apply`);
- its value is being checked at the end (`Engine._emit`, `checks`).

As any sequence it may also wait for a seat, for pages, for its tenant's share of a step's tokens, or for a prefix that
another one computes (`Scheduler._admit`), be put back to wait when pages run out (`_retract`), or repeat a pass for
which there was no memory (`Engine._run_in_parts`).

Requests come in through `submit`; outputs leave as events, one of them terminal.
"""
