"""Reads people out of a text file, as Pydantic objects: one solved example, a schema, and a batch.

python examples/extract.py [FILE]
"""

import json
import sys
from pathlib import Path

from pydantic import BaseModel, Field

import bough


class Person(BaseModel):
    name: str = Field(max_length=40)
    age: int = Field(ge=0, le=130)
    job: str = Field(max_length=30)
    city: str = Field(max_length=30)


EXAMPLE = "Peter Novak is 51 years old. He lives in Prague, where he is a baker."
ANSWER = Person(name="Peter Novak", age=51, job="baker", city="Prague")


@bough.function
def extract(s: bough.State, text: str) -> Person:
    s += bough.system("You extract data from text as JSON.")
    s += bough.user(f"Text: {EXAMPLE}")
    s += bough.assistant(json.dumps(ANSWER.model_dump()))  # spaced as generated JSON is
    s += bough.user(f"Text: {text}")
    s += bough.assistant(bough.gen("person", max_tokens=96, temperature=0, schema=Person))
    person: Person = s["person"]
    return person


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("people.txt")
    paragraphs = [text.strip() for text in path.read_text(encoding="utf-8").split("\n\n") if text.strip()]
    bough.set_default_backend(bough.LocalBackend())
    for state in extract.run_batch([{"text": text} for text in paragraphs]):
        print(repr(state.ret_value))


if __name__ == "__main__":
    main()
