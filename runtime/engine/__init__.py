"""The engine's step: admission, masks, drafts, one forward pass, and the outputs of each request.

A constrained sequence may be delayed because:

- its grammar is being compiled (`Admission.compiled`);
- its mask is late (`MaskStage.finish`), also where its tenant has too many late masks, so that slower threads fill it
  (`MaskStage.start`); the other sequences of the step wait at most twice the mask's patience, then go on;
- its pass ran out of memory while its mask was late, so that it sits out the repeated pass (`MaskStage.abandon`);
- its mask is begun only once the step before has been read, if that was unread when the pass was launched
  (`Engine._draw`);
- near its token limit, only a search can tell if the drawn token still leads to an end (`Generation.take`); it is drawn
  again after the search (`MaskStage.defer_undecided`);
- its grammar replaced the drawn token, so that the steps in flight are void (`Scheduler.apply`);
- its finished value is being checked (`Engine._emit`, `checks`).

As any sequence, it may also:

- wait for its `stop_regex` to be compiled (`Admission.compiled`);
- wait for a seat, for pages, for its tenant's share of a step's tokens, or for a prefix that another one is computing
  (`Scheduler._admit`);
- be put back to wait, when pages run out or a tenant with a smaller share is due its seat or its pages
  (`Scheduler._plan_running`, `_make_way`);
- sit out steps while one that verifies its drafts is unread (`Sequence.blocked`);
- repeat a pass that ran out of memory (`Engine._run_in_parts`). A pass that fails otherwise ends its sequences.

Requests come in through `submit`; outputs leave as events, one of them terminal.
"""
