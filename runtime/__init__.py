"""The engine, and all that runs a model: programs, requests, the scheduler, passes, drawing of tokens.

`client` is the door: requests and programs come in, streams of events go out. Floors, from the top: client, load,
programs | templates, engine, runner, models, sampler | scheduler | tokenizer | checkpoints | tools, protocol.

What is decided where: what a step computes, who waits and who shares a prefix in `scheduler`; what delays a constrained
row in `engine`; what an instruction does, and what becomes of a program whose client leaves, in `programs`; what files
are read in `checkpoints`. `client` is the interface to an engine; clients over HTTP are the server's.
"""
