"""Twenty prompts of many kinds: prose, code, tables, other scripts, repetition."""

from __future__ import annotations

PROMPTS = (
    "The capital of France is",
    "def quicksort(items):\n    ",
    '{"name": "Ada Lovelace", "born": 1815, "fields": [',
    "Once upon a time, in a village by the sea, there lived a girl who",
    "Q: What is 17 times 3?\nA:",
    "The three laws of thermodynamics are, in order:\n1.",
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
    "SELECT name, COUNT(*) FROM orders",
    "Les feuilles des arbres tombent en automne parce que",
    "水は",
    "| country | capital |\n|---|---|\n| Italy | Rome |\n| Spain |",
    "a a a a a a a a a a a a a a a a",
    "The recipe needs 200 g of flour, 2 eggs and",
    "To be, or not to be, that is the question:",
    "import numpy as np\n\nmatrix = np.array([[1, 2], [3, 4]])\nprint(",
    "Dear Sir or Madam,\n\nI am writing to complain about",
    "1, 1, 2, 3, 5, 8, 13,",
    "Привет, как",
    "The patient presented with a fever of 39.5 °C, and",
    "🙂 Emoji are small pictures that",
)

HANG, LOSE, POISON, SWELL = "\x02", "\x03", "\x04", "\x05"
"""A pass of `faulty_server` that computes this does not end, loses the device, has logits that are not finite, or runs
out of memory."""
