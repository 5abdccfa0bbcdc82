"""Self-consistency: a question is answered several times, step by step, and the answer that comes most often wins.

python examples/self_consistency.py
bough run examples/self_consistency.py --arg question="..."
"""

from collections import Counter

import bough

SOLVED = """\
Question: Tom has 4 apples and buys 3 more. How many apples does he have?
Reasoning: 4 + 3 = 7.
Answer: 7

Question: A box holds 6 eggs. How many eggs are in 3 boxes?
Reasoning: 3 * 6 = 18.
Answer: 18

"""


@bough.function
def consistent(
    s: bough.State, question: str = "A bag holds 5 pens. How many pens are in 4 bags?", num_samples: int = 7
) -> tuple[int, list[int]]:
    """The answer, and what all samples said. The prompt is computed once, and the samples in one batch."""
    s += SOLVED + f"Question: {question}\nReasoning:"
    thought = bough.gen("thought", max_tokens=24, stop="\n", temperature=0.8, top_p=0.9, seed=1)
    branches = s.fork_samples(thought, num_samples)
    branches += "\nAnswer: " + bough.gen("answer", int, max_tokens=4, temperature=0)
    branches.join()
    votes: list[int] = s["answer"]
    return Counter(votes).most_common(1)[0][0], votes


if __name__ == "__main__":
    bough.set_default_backend(bough.LocalBackend())
    state = consistent.run()
    answer, votes = state.ret_value
    print(*(f"{vote:6}  {thought.strip()}" for vote, thought in zip(votes, state["thought"], strict=True)), sep="\n")
    print(f"The answer is {answer}.")
    print(f"\nOf {state.usage.prompt_tokens:,} prompt tokens, {state.usage.cached_tokens:,} came from the cache.")
