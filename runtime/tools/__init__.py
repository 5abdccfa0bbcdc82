"""Tools in the engine: the registry, checked arguments, threads and quotas.

Calls with arguments as JSON come in, texts or errors go out; a slow tool holds up no step.
"""
