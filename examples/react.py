"""ReAct in one request: thoughts, actions and observations in a loop that the engine runs, with a tool that it calls.

python examples/react.py
bough run examples/react.py --temperature 0 --arg question="..."
"""

import bough

FACTS = {
    "Vienna": "Vienna has 2 million inhabitants.",
    "Graz": "Graz has 300 thousand inhabitants.",
    "Linz": "Linz has 200 thousand inhabitants.",
}
SHOWN = """\
Question: How high is the highest mountain of Japan?
Thought: I have to find the highest mountain of Japan.
Action: Look up Japan
Observation: The highest mountain of Japan is Fuji.
Thought: I have to find the height of Fuji.
Action: Look up Fuji
Observation: Fuji is 3776 metres high.
Thought: I know the height of Fuji.
Action: Answer 3776 metres

Question: How long is the river Rhine?
Thought: I have to look up the Rhine.
Action: Look up Rhine
Observation: The Rhine is 1230 kilometres long.
Thought: I know the length of the Rhine.
Action: Answer 1230 kilometres

"""


@bough.tool(timeout_s=5)
def look_up(topic: str) -> str:
    """Looks a topic up in an encyclopedia."""
    return FACTS[topic.strip()]


def search(s: bough.State) -> None:
    s += bough.select("topic", [f" {topic}" for topic in FACTS])
    s += "\nObservation: " + bough.use("observation", look_up, topic=s.ref("topic"))


def step(s: bough.State) -> None:
    """Recorded once; the engine repeats it."""
    s += "\nThought:" + bough.gen("thought", max_tokens=24, stop="\n")
    s += "\nAction:" + bough.select("action", [" Look up", " Answer"])
    s += bough.when(bough.var("action") == "Look up", search)


@bough.function
def react(s: bough.State, question: str = "How many people live in Graz?") -> str:
    s += SHOWN + f"Question: {question}"
    s += bough.repeat_until(bough.var("action") == "Answer", step, at_most=4)
    s += bough.gen("answer", max_tokens=16, stop="\n")
    return s.text().removeprefix(SHOWN)


if __name__ == "__main__":
    bough.set_default_backend(bough.LocalBackend())
    print(react.run(temperature=0).ret_value)
