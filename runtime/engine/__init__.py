"""The step: admission, masks, drafts, one pass, and what each request makes of its tokens.

What may delay a constrained row: its grammar is being compiled (`Admission.compiled`); its mask is late
(`masks.MaskStage.finish`), or it takes a search to tell if its drawn token leads to an end (found by `Generation.take`,
waited for in `MaskStage`); its value is being checked at the end (`Engine._emit`, `checks`). The other rows of the step
wait twice `MaskStage`'s patience at most, then go on without it. The scheduler may hold it back as any row.

Requests come in through `submit`; outputs leave as events, one of them terminal.
"""
