"""lang/backends."""
