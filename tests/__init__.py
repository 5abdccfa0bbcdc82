"""Tests, by the folder and module that they are for."""
