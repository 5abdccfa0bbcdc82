"""Tree of thought: a story grows in two directions at each step, and the path that the model likes best is kept.

python examples/tree_of_thought.py
"""

import bough

STEPS = ("Write the first sentence of the story.", "Write the next sentence.", "Write the last sentence.")


def grow(s: bough.State, steps: tuple[str, ...]) -> list[bough.State]:
    """Forks once for each step, each time into two; returns the leaves, all of which are generated in parallel."""
    if not steps:
        return [s]
    leaves = []
    for number, branch in enumerate(s.fork(2)):
        branch += bough.user(steps[0])
        branch += bough.assistant(
            bough.gen(
                f"sentence_{len(steps)}", max_tokens=40, temperature=0.9, top_p=0.95, seed=number, stop=[".", "\n"]
            )
        )
        leaves += grow(branch, steps[1:])
    return leaves


@bough.function
def story(s: bough.State, topic: str) -> str:
    s += bough.system("You write short stories for children, in simple words.")
    s += bough.user(f"The story is about {topic}.")
    leaves = grow(s, STEPS)
    for leaf in leaves:
        leaf += bough.user("Is this a good story? Answer yes or no.")
        leaf += bough.assistant(bough.select("good", ["Yes", "No"]))
    scores = [leaf.probabilities("good")["Yes"] for leaf in leaves]
    best = leaves[scores.index(max(scores))]
    print("probability of being good:", ", ".join(f"{score:.2f}" for score in scores))
    return " ".join(best[f"sentence_{left}"].strip() + "." for left in range(len(STEPS), 0, -1))


def main() -> None:
    bough.set_default_backend(bough.LocalBackend())
    state = story.run(topic="a small fox who is afraid of the dark")
    print(state.ret_value)
    usage = state.usage
    print(f"\nOf {usage.prompt_tokens} prompt tokens, {usage.cached_tokens} came from the cache.")


if __name__ == "__main__":
    main()
