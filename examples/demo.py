"""A travel desk: one article, four branches that share it, JSON that always parses, and a choice with probabilities.

bough run examples/demo.py --timeline demo.html
python examples/demo.py
"""

from pydantic import BaseModel, Field

import bough

ARTICLE = """\
Lisbon is the capital of Portugal. Half a million people live in the city, which lies on seven hills on the north bank
of the river Tagus, near the Atlantic Ocean. Yellow trams climb its narrow streets. In 1755 an earthquake destroyed most
of the city; the lower town was built anew with straight streets and large squares. Visitors come for the food, for the
songs called fado, and for the mild winters: even in January it is rarely colder than 8 degrees."""


class City(BaseModel):
    city: str = Field(max_length=20)
    country: str = Field(max_length=20)
    river: str = Field(max_length=20)
    year_of_earthquake: int = Field(ge=1000, le=2100)


@bough.function
def main(s: bough.State) -> str:
    """Everything below is recorded first, and sent to the engine as one request when a value is read."""
    s += bough.system("You are a travel editor. You answer briefly and use only facts from the text.")
    s += bough.user(ARTICLE)

    # Four branches side by side. What came before is computed once and shared by all of them.
    title, summary, facts, kind = s.fork(4)
    title += bough.user("Write a short title for the text.")
    title += bough.assistant(bough.gen("title", max_tokens=12, temperature=0, stop="\n"))
    summary += bough.user("Summarize the text in one sentence.")
    summary += bough.assistant(bough.gen("summary", max_tokens=48, temperature=0, stop="\n"))
    facts += bough.user("Write the facts about the city as JSON.")
    facts += bough.assistant(bough.gen("city", max_tokens=80, temperature=0, schema=City))
    kind += bough.user("What is the text about?")
    kind += bough.assistant("The text is about" + bough.select("kind", [" a city", " a person", " an animal"]))

    city = facts["city"]  # a City: what the model wrote under a schema always parses
    lines = [
        f"title    {title['title']}",
        f"summary  {summary['summary']}",
        f"city     {city!r}",
        "about    "
        + ", ".join(f"{choice.strip()} {share:.1%}" for choice, share in kind.probabilities("kind").items()),
    ]
    s.sync()
    prompt, cached, output = s.usage.prompt_tokens, s.usage.cached_tokens, s.usage.completion_tokens
    lines += [
        "",
        f"Of {prompt:,} prompt tokens, {cached:,} came from the radix cache ({cached / prompt:.0%}).",
        f"Of {output:,} generated tokens, {s.usage.forced_tokens:,} were forced by the schema.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    bough.set_default_backend(bough.LocalBackend())
    print(main.run().ret_value)
