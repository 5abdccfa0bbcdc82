"""The step: admission, masks, drafts, one pass, and what each request makes of its tokens.

Requests come in through `submit`; outputs leave as events, one of them terminal.
"""
