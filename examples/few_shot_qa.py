"""Few-shot question answering: many questions behind the same solved examples, run as one batch.

python examples/few_shot_qa.py
"""

import bough

EXAMPLES = """\
Question: What is the capital of France?
Answer: Paris

Question: How many legs does a spider have?
Answer: Eight

Question: Which ocean lies between Europe and America?
Answer: The Atlantic Ocean

"""

QUESTIONS = [
    "What is the capital of Japan?",
    "Who wrote Hamlet?",
    "What is the chemical symbol of gold?",
    "How many days does a week have?",
    "On which continent is Egypt?",
    "What do bees make?",
]


@bough.function
def answer(s: bough.State, question: str) -> None:
    s += EXAMPLES
    s += f"Question: {question}\nAnswer:"
    s += bough.gen("answer", max_tokens=16, temperature=0, stop="\n")


def main() -> None:
    bough.set_default_backend(bough.LocalBackend())
    states = answer.run_batch([{"question": question} for question in QUESTIONS], progress_bar=True)
    for question, state in zip(QUESTIONS, states, strict=True):
        print(f"{question:40} {state['answer'].strip()}")
    prompt = sum(state.usage.prompt_tokens for state in states)
    cached = sum(state.usage.cached_tokens for state in states)
    print(f"\nOf {prompt} prompt tokens, {cached} came from the cache.")


if __name__ == "__main__":
    main()
