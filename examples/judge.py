"""Branch, solve, merge: an essay is judged in several dimensions side by side, and the judgements become one verdict.

python examples/judge.py
bough run examples/judge.py --arg essay="..."
"""

import bough

DIMENSIONS = ("clarity", "evidence", "style")

ESSAY = """\
Cities should plant more trees. A street with trees is up to five degrees cooler in summer than a street without, and
the leaves hold back dust. Trees also make people walk more: in a study of twelve towns, shops in streets with trees had
more visitors. Trees cost money, but much less than air conditioning."""


@bough.function
def judge(s: bough.State, essay: str = ESSAY) -> str:
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

    lines = [f"{dimension:10} {text}" for dimension, text in zip(DIMENSIONS, s["judgement"], strict=True)]
    shares = ", ".join(f"{choice.strip()} {share:.0%}" for choice, share in s.probabilities("verdict").items())
    return "\n".join([*lines, f"{'verdict':10} {shares}"])


if __name__ == "__main__":
    bough.set_default_backend(bough.LocalBackend())
    print(judge.run().ret_value)
