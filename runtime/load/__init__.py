"""From a model's name and options to a running engine: what fits the machine, and every part put together.

An engine configuration comes in, an engine with its model, cache and tokenizer goes out.
"""
