"""Timelines of runs: where tokens came from, and when; as numbers, as text, and as pages."""
