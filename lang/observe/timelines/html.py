"""Pieces of HTML that notebooks show: escaped, bounded in size, and kept apart from the rest of their page."""

from __future__ import annotations

from html import escape

MAX_FRAME_CHARS = 4_000_000
FRAME_HEIGHT = 640


def framed(page: str, text: str, what: str) -> str:
    """A whole page inside another, on which it can do nothing; too large a one is shown as `text`."""
    if len(page) > MAX_FRAME_CHARS:
        size = f"{len(page) / 1e6:.0f} MB"
        return f"<pre>{escape(text)}</pre><p>The {escape(what)} is {size} large: write it to a file with save().</p>"
    return (
        f'<iframe srcdoc="{escape(page)}" title="{escape(what)}" sandbox="allow-scripts" loading="lazy" '
        f'style="width:100%;height:{FRAME_HEIGHT}px;border:0;border-radius:12px"></iframe>'
    )
