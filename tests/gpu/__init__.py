"""Tests of the whole engine on a GPU; most of them also run on the CPU, in small."""
