"""Documents and conversations: fields under a grammar, and chats of several turns."""

from __future__ import annotations

from ...constrain.spec import Regex
from .prose import Prose
from .workload import Script, Size, Workload

_FIELDS = (
    ("name", r'"[A-Z][a-z]{1,14}( [A-Z][a-z]{1,14})?"', 8),
    ("country", r'"[A-Z][a-z]{1,14}( [A-Z][a-z]{1,14})?"', 8),
    ("latitude", r"-?[0-9]{1,2}\.[0-9]{1,4}", 8),
    ("population", r"[1-9][0-9]{1,8}", 10),
    ("landmarks", r'\["[A-Za-z ]{3,16}", "[A-Za-z ]{3,16}", "[A-Za-z ]{3,16}"\]', 24),
)


def json_fields(size: Size) -> Workload:
    """Five fields of a document, each under a regular expression of its own."""
    prose = Prose(9)
    programs = []
    for _ in range(size.programs(4)):
        script = Script()
        script.text(f"{prose.text(size.length(200))}\n\nThe city above as JSON:\n{{")
        for index, (field, pattern, max_tokens) in enumerate(_FIELDS):
            script.text(f'{"," if index else ""}\n  "{field}": ')
            script.gen(max_tokens, grammar=Regex(pattern))
        script.text("\n}\n")
        programs.append(script.ops)
    return Workload("JSON fields, regex", "a document for its five fields", tuple(programs))


def chat_short(size: Size) -> Workload:
    return _chat("Chat, short answers", size, num_chats=5, question=48, answer=6)


def chat_long(size: Size) -> Workload:
    return _chat("Chat, long answers", size, num_chats=4, question=40, answer=40)


def _chat(name: str, size: Size, *, num_chats: int, question: int, answer: int) -> Workload:
    prose = Prose(10)
    programs = []
    for _ in range(size.programs(num_chats)):
        script = Script()
        for _ in range(4):
            script.message("user", prose.text(size.length(question)))
            script.answer(size.length(answer, least=4))
        programs.append(script.ops)
    return Workload(name, "each conversation's own history", tuple(programs))
