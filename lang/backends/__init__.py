"""Where programs run: in this process, on a server, or against scripted answers."""
