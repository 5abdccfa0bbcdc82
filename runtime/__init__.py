"""The engine, and all that runs a model: programs, requests, the scheduler, passes, drawing of tokens.

`client` is the door: requests and programs come in, streams of events go out. Floors, from the top: client, load,
programs | templates, engine, runner, models, sampler | scheduler | tokenizer | checkpoints | tools, protocol.
"""
