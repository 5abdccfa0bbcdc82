"""The command line: `bough serve | run | deploy | chat | models | pull | schema | bench | completion`."""
