"""The page of a timeline: whole, escaped, and self-contained."""

from html.parser import HTMLParser

import pytest

from bough.lang.observe.timelines.timeline import Timeline
from bough.runtime.protocol.program import Piece, Value
from bough.runtime.protocol.request import CACHED, FORCED, SAMPLED, UNUSED

from .test_timeline import OPS, PIECES, piece


class Page(HTMLParser):
    """Contents of a page: its text, ids, links, addresses; checks that every element is closed."""

    def __init__(self, html):
        super().__init__()
        self.open: list[str] = []
        self.ids, self.links, self.addresses, self.words = [], [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids += [values["id"]] if "id" in values else []
        self.links += [values["href"]] if "href" in values else []
        self.addresses += [values[name] for name in ("src", "action", "data") if name in values]
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)


@pytest.fixture
def timeline():
    events = [*PIECES, Value(branch=2, name="b", text="yes", probabilities=(0.75, 0.25))]
    return Timeline.of(OPS, events, title="small <program>")


def test_the_page_is_whole_and_needs_nothing_from_outside(timeline):
    html = timeline.html()
    page = Page(html)
    assert page.addresses == []
    assert len(set(page.ids)) == len(page.ids)
    assert page.links
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert "url(" not in html
    assert "@import" not in html
    assert "http://" not in html
    assert "https://" not in html
    words = "".join(page.words)
    assert "Of 16 prompt tokens, 10 came from the cache (62%)." in words
    assert words.index("75.0%") < words.index("25.0%")


def test_every_text_of_the_program_is_escaped():
    evil = '"><script>alert(1)</script>'
    one, other = (evil, "\n"), (SAMPLED, FORCED)
    pieces = [
        Piece(branch=0, op=0, kind="gen", name=evil, role=evil, texts=one, origins=other, stop_s=1.0),
        Piece(branch=0, op=1, kind="select", name="s", texts=(evil,), origins=(SAMPLED,)),
    ]
    html = Timeline(pieces, title=evil, probabilities={(0, "s"): {evil: 1.0}}).html()
    assert html.count("<script") == 1
    assert evil not in html
    assert "".join(Page(html).words).count(evil) >= 6


def test_tokens_carry_their_origin(timeline):
    html = timeline.html()
    assert '<i class="t sampled">x</i><i class="t forced">y</i>' in html
    unused = Timeline([piece(0, 0, "text", "x", UNUSED)])
    assert '<i class="t unused">x</i>' in unused.html()
    assert unused.summary()["unused_tokens"] == 1
    cached = Timeline([Piece(branch=0, op=0, kind="text", texts=("a\n",), origins=(CACHED,))]).html()
    assert '<i class="t cached" data-text="a\n">a<u>↵</u>\n</i>' in cached


def test_a_long_message_is_folded():
    many = Timeline([piece(0, 0, "text", " ".join("w" * 500))]).html()
    assert "Show all 500 tokens" in many
    few = Timeline([piece(0, 0, "text", "w w")]).html()
    assert "Show all" not in few


def test_the_page_of_an_empty_program_is_whole():
    Page(Timeline([]).html())
