"""Timelines of runs: where tokens came from, and when; as numbers, as text, and as pages.

Program events come in; a `Timeline` that prints, and pages that show it, go out.
"""
