"""Elements and keys that must differ, where no grammar can say so."""
