"""The free list of page ids."""

from __future__ import annotations

from array import array

NULL_PAGE = 0
"""Never handed out, so that padding in a page table can point at it."""


class PagePool:
    """Hands out the page ids 1 .. num_pages - 1.

    Last freed, first out; a run of pages is handed out again in the order in which it was given back. A fresh pool
    hands out 1, 2, 3, ... So the pages of one sequence mostly lie side by side, and equal calls get equal pages.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 2:
            raise ValueError(f"num_pages must be at least 2 (page {NULL_PAGE} is never used), got {num_pages}")
        self.num_pages = num_pages
        self.free_pages = array("i", range(num_pages - 1, NULL_PAGE, -1))  # a stack: the next page is its last

    @property
    def num_free(self) -> int:
        return len(self.free_pages)

    def allocate(self, count: int) -> array[int]:
        """Takes `count` pages out of the pool; at most `num_free`."""
        if not 0 <= count <= len(self.free_pages):
            raise ValueError(f"count must be 0 .. {len(self.free_pages)} (the free pages), got {count}")
        start = len(self.free_pages) - count
        pages = self.free_pages[start:]
        del self.free_pages[start:]
        pages.reverse()
        return pages

    def free(self, pages: array[int]) -> None:
        """Takes back pages that `allocate` handed out; each once."""
        self.free_pages.extend(pages[::-1])
        assert len(self.free_pages) < self.num_pages, "a page was freed twice"
