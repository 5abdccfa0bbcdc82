"""Timelines of runs: the origin and time of each token, as numbers, as text, and as pages.

Program events come in; a `Timeline` that prints, and pages that show it, go out.
"""
