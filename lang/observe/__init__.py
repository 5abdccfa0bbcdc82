"""Observation of runs: spans for OpenTelemetry, timelines, and the pages that show them.

Program events come in; spans, reports and pages go out.
"""
