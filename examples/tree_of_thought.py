"""Tree of thought: a story grows in two directions at each sentence, and the path that the model likes best is kept.

python examples/tree_of_thought.py
"""

import bough

NUM_SENTENCES = 3


def grow(s: bough.State, sentence: int = 1) -> list[bough.State]:
    """Forks into two for each sentence; returns the leaves. Nothing is read, so all of it is one request."""
    if sentence > NUM_SENTENCES:
        return [s]
    leaves: list[bough.State] = []
    for number, branch in enumerate(s.fork(2)):
        branch += bough.gen(
            f"sentence {sentence}", max_tokens=40, temperature=0.8, top_p=0.9, seed=number, stop=[".", "\n"]
        )
        branch += "."
        leaves += grow(branch, sentence + 1)
    return leaves


@bough.function
def story(s: bough.State, topic: str = "a small fox who is afraid of the dark") -> str:
    s += bough.user(f"Write a very short story for children about {topic}.")
    s += bough.assistant_begin()
    s += "Once upon a time,"
    leaves = grow(s)
    for leaf in leaves:
        leaf += bough.assistant_end()
        leaf += bough.user("Is this a good story for children?")
        leaf += bough.assistant(bough.select("good", ["Yes", "No"]))
    scores = [leaf.probabilities("good")["Yes"] for leaf in leaves]
    best = leaves[scores.index(max(scores))]
    print("Probability of being good, path by path:", ", ".join(f"{score:.2f}" for score in scores))
    sentences = [best[f"sentence {number}"] + "." for number in range(1, NUM_SENTENCES + 1)]
    return "Once upon a time," + "".join(sentences)


if __name__ == "__main__":
    bough.set_default_backend(bough.LocalBackend())
    state = story.run()
    print(state.ret_value)
    print(f"\nOf {state.usage.prompt_tokens:,} prompt tokens, {state.usage.cached_tokens:,} came from the cache.")
