"""The command line: `bough serve | run | chat | pull | bench`."""
