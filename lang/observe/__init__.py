"""What a run did: spans for OpenTelemetry, and timelines.

Program events come in; spans, reports and pages go out.
"""
