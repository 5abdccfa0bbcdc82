"""Engine start-up: loads a model by name and options, fits its memory to the machine, and assembles the parts.

An engine configuration comes in; an engine with its model, cache and tokenizer goes out.
"""
