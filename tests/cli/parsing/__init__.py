"""Tests of `cli.parsing`."""
