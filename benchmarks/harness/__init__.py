"""Tools that every benchmark uses: a server to measure, timings, models of random weights.

Commands and shapes come in; figures and processes that end with their parent go out.
"""
