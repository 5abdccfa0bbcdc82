"""A conversation of several turns: each turn continues the tokens of the last, so only what is new is computed.

python examples/chat.py
"""

import bough

QUESTIONS = ("What is the capital of France?", "Which river flows through it?", "Name a famous tower in this city.")


@bough.function
def chat(s: bough.State, questions: tuple[str, ...] = QUESTIONS) -> None:
    s += bough.system("You are a helpful guide. You answer in one short sentence.")
    before = s.usage
    for question in questions:
        s += bough.user(question)
        s += bough.assistant(bough.gen("answer", max_tokens=48, temperature=0, stop="\n"))
        print(f"> {question}\n{s['answer']}")  # reading sends what is recorded and waits for the value
        s.sync()
        usage = s.usage
        prompt = usage.prompt_tokens - before.prompt_tokens
        cached = usage.cached_tokens - before.cached_tokens
        print(f"  ({prompt} prompt tokens, {cached} of them from the cache)\n")
        before = usage


if __name__ == "__main__":
    bough.set_default_backend(bough.LocalBackend())
    chat.run()
