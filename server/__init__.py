"""The HTTP server: OpenAI's API, programs, and what operators need. HTTP only; no model code."""
