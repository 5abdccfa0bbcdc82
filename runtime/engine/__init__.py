"""The step: admission, masks, drafts, one pass, and what each request makes of its tokens.

What may delay a constrained row: its grammar is being compiled (`Admission.compiled`); its mask is late
(`MaskStage.finish`, in `masks`), or its tenant has too many late masks, so that slower threads fill it
(`MaskStage.start`); it takes a search to tell if its drawn token leads to an end (found by `Generation.take`, waited
for by `MaskStage.defer_undecided`); its value is being checked at the end (`Engine._emit`, `checks`). The other rows
of the step wait twice `MaskStage`'s patience at most, then go on without it. As any row it may also wait for a seat,
for pages, or for a prefix that another row computes (`Scheduler._admit`).

Requests come in through `submit`; outputs leave as events, one of them terminal.
"""
