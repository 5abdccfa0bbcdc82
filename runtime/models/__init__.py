"""runtime/models."""
