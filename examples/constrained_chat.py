"""A chat in which each answer is an object: the history stays in the engine, and every turn is held to the schema.

python examples/constrained_chat.py [QUESTION ...]
"""

import json
import sys
from collections.abc import Iterable

from pydantic import BaseModel, Field

import bough


class Reply(BaseModel):
    answer: str = Field(min_length=1, max_length=80)
    sure: bool


SHOWN = Reply(answer="Water boils at 100 degrees Celsius.", sure=True)


@bough.function
def chat(s: bough.State, questions: Iterable[str]) -> list[Reply]:
    s += bough.system("You answer questions as JSON, and say whether you are sure.")
    s += bough.user("At what temperature does water boil?")
    s += bough.assistant(json.dumps(SHOWN.model_dump()))  # spaced as generated JSON is
    replies: list[Reply] = []
    for question in questions:
        s += bough.user(question)
        s += bough.assistant(bough.gen("reply", schema=Reply, max_tokens=64, temperature=0))
        replies.append(s["reply"])  # a read: the turn ends here, and the next one goes on from its tokens
        print(f"> {question}\n{replies[-1]!r}\n")
    return replies


if __name__ == "__main__":
    bough.set_default_backend(bough.LocalBackend())
    state = chat.run(sys.argv[1:] or ["What is the capital of France?", "And of Japan?"])
    print(f"Of {state.usage.prompt_tokens:,} prompt tokens, {state.usage.cached_tokens:,} came from the cache.")
