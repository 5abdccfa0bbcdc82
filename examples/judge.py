"""Branch, solve, merge: an essay is judged in several dimensions side by side, and the judgements become one verdict.

python examples/judge.py
bough run examples/judge.py --arg essay="..."
bough deploy examples/judge.py                  as an endpoint of a server: POST /v1/programs/judge
"""

from typing import Any

import bough

DIMENSIONS = ("clarity", "evidence", "style")

ESSAY = """\
Cities should plant more trees. A street with trees is up to five degrees cooler in summer than a street without, and
the leaves hold back dust. Trees also make people walk more: in a study of twelve towns, shops in streets with trees had
more visitors. Trees cost money, but much less than air conditioning."""


@bough.function
def judge(s: bough.State, essay: str = ESSAY) -> dict[str, dict[str, Any]]:
    s += bough.system("You are a fair judge of essays. You answer in one sentence.")
    s += bough.user(f"This is the essay:\n\n{essay}")
    forks = s.fork(len(DIMENSIONS))
    for dimension, branch in zip(DIMENSIONS, forks, strict=True):
        branch += bough.user(f"Judge the {dimension} of the essay.")
        branch += bough.assistant(bough.gen("judgement", max_tokens=40, temperature=0, stop=[".", "\n"]))
    forks.join()

    # The judgements are put in by the engine: nothing is read here, so this is still the same request.
    s += bough.user_begin()
    s += "Judgements of others:"
    for index, dimension in enumerate(DIMENSIONS):
        s += f"\n- {dimension}: " + s.ref("judgement", index)
    s += "\n\nIs the essay good, fair or poor?"
    s += bough.user_end()
    s += bough.assistant("The essay is" + bough.select("verdict", [" good", " fair", " poor"]))

    judgements: dict[str, Any] = dict(zip(DIMENSIONS, s["judgement"], strict=True))
    return {"judgements": judgements, "verdict": s.probabilities("verdict")}


if __name__ == "__main__":
    bough.set_default_backend(bough.LocalBackend())
    for title, lines in judge.run().ret_value.items():
        print(title)
        for name, what in lines.items():
            print(f"  {name.strip():10} {what}")
