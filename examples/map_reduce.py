"""Map and reduce: the parts of a long text are summed up side by side, and their summaries become one.

python examples/map_reduce.py [FILE]      parts of the file are its paragraphs
"""

import sys
from pathlib import Path

import bough

SHORT = """\
Text: Bern is the capital of Switzerland. It lies on the river Aare, and 140 thousand people live there.
In short: Bern is a Swiss city on the Aare.

Text: In 1405 a fire destroyed most of Bern. The houses were built anew, in sandstone.
In short: A fire destroyed Bern in 1405.

"""
MUSEUM = """\
The museum opened in 1902. It shows paintings from four centuries.

In 1950 a fire destroyed a part of the museum. It was closed for six years.

Today the museum has half a million visitors a year, most of them from abroad."""


@bough.function
def digest(s: bough.State, parts: list[str]) -> tuple[list[str], str]:
    """The summaries of all parts, and the one made of them. Nothing is read before all of it is recorded."""
    s += SHORT
    branches = s.fork(len(parts))
    branches += [f"Text: {part}\nIn short:" for part in parts]
    branches += bough.gen("summary", max_tokens=32, stop="\n", temperature=0)
    branches.join()
    s += "Text:"
    for index in range(len(parts)):
        s += s.ref("summary", index)
    s += "\nIn short:" + bough.gen("digest", max_tokens=48, stop="\n", temperature=0)
    return [summary.strip() for summary in s["summary"]], s["digest"].strip()


def main() -> None:
    text = Path(sys.argv[1]).read_text(encoding="utf-8") if len(sys.argv) > 1 else MUSEUM
    bough.set_default_backend(bough.LocalBackend())
    summaries, whole = digest.run([part.strip() for part in text.split("\n\n") if part.strip()]).ret_value
    print(*(f"- {summary}" for summary in summaries), sep="\n")
    print(f"\n{whole}")


if __name__ == "__main__":
    main()
