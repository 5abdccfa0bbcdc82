"""Context-free grammars in the notations that clients use, and what can be said of them before they run."""
