"""Tests of `lang`."""
