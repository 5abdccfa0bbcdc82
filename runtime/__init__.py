"""Engine and everything that runs a model: programs, requests, the scheduler, forward passes, sampling.

`client` is the entry: requests and programs come in, streams of events go out. Clients over HTTP are the server's.
Layers, from the top: client | templates, load | programs, engine, runner, models | tokenizer, checkpoints | sampler |
scheduler | tools, protocol.

Responsibilities: `scheduler` decides which sequences a step computes, which wait, and which share a prefix; `engine`,
how long a constrained sequence waits for its grammar, masks and checks; `programs`, what an instruction does, and how a
program ends when its client leaves; `checkpoints`, which files are read.
"""
