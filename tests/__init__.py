"""Tests, arranged as the folders and modules that they test."""
