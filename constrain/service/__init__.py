"""Compilations side by side, each bounded in time and memory."""
