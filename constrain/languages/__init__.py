"""Regular languages of texts and numbers: built from patterns, formats and bounds, decided, written as terminals."""
