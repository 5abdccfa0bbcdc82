"""Tools in the engine: the registry, checked arguments, threads and quotas, and the forms in which models write calls.

Calls with arguments as JSON come in, texts or errors go out; a slow tool delays no step.
"""
