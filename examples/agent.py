"""An agent with tools behind a long system prompt, over the OpenAI API: every call extends what the last one cached.

python examples/agent.py                                    starts a server of its own
python examples/agent.py --base-url http://127.0.0.1:8000/v1

It needs the package `openai`, as any client of the server may.
"""

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from typing import Any

import httpx
import openai

WEATHER = {"Lisbon": "sunny, 24 degrees", "Oslo": "snow, -3 degrees", "Cairo": "dry, 33 degrees"}
STOCK = {"umbrella": 12, "sunglasses": 40, "winter coat": 0}

SYSTEM = """\
You are the assistant of a travel shop. You help customers choose what to take along, and you look facts up with the \
tools below instead of guessing. At each step you write one JSON object: the tool to use and its argument.

get_weather: the weather now. The argument is the name of a city.
get_stock: how many pieces of an article the shop has. The argument is the name of the article.
finish: ends the task. The argument is the answer for the customer, in one sentence.

Rules of the shop: be polite and brief. Prices are not discussed. Never ask for personal data. Umbrellas are for rain, \
sunglasses for sun, winter coats for snow. Look up the weather first, then the article, then finish.

Customer: I fly to Madrid. What should I take along?
{"tool": "get_weather", "argument": "Madrid"}
Result: sunny, 27 degrees
{"tool": "get_stock", "argument": "sunglasses"}
Result: 40 pieces
{"tool": "finish", "argument": "It is sunny in Madrid, so take sunglasses; we have 40 pieces."}"""

LOOK_UPS = {"get_weather": list(WEATHER), "get_stock": list(STOCK)}


def step_schema(used: set[str]) -> dict[str, Any]:
    """The next step: a look-up that was not made yet, with an argument that exists, or else the end.

    What may not happen cannot be written: the model needs no second chance.
    """
    steps = [(tool, {"enum": arguments}) for tool, arguments in LOOK_UPS.items() if tool not in used]
    steps = steps or [("finish", {"type": "string", "minLength": 1, "maxLength": 90})]
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {"tool": {"const": tool}, "argument": argument},
                "required": ["tool", "argument"],
                "additionalProperties": False,
            }
            for tool, argument in steps
        ]
    }


def use(tool: str, argument: str) -> str:
    if tool == "get_weather":
        return WEATHER.get(argument, f"unknown city {argument!r}")
    return f"{STOCK[argument]} pieces" if argument in STOCK else f"unknown article {argument!r}"


def solve(client: openai.OpenAI, model: str, task: str, *, max_steps: int = 4) -> tuple[int, int]:
    """Runs the loop and prints its steps; returns the prompt tokens of all calls, and how many were cached."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Customer: {task}"}]
    prompt_tokens = cached_tokens = 0
    used: set[str] = set()
    print(f"\n> {task}")
    for _ in range(max_steps):
        completion = client.chat.completions.create(
            model=model,
            messages=messages,
            temperature=0,
            max_tokens=80,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "step", "strict": True, "schema": step_schema(used)},
            },
        )
        answer = completion.choices[0].message.content or ""
        if completion.usage is not None:
            details = completion.usage.prompt_tokens_details
            cached = (details.cached_tokens if details else None) or 0
            prompt_tokens += completion.usage.prompt_tokens
            cached_tokens += cached
            print(f"  {answer}   [{cached} of {completion.usage.prompt_tokens} prompt tokens cached]")
        step = json.loads(answer)  # always parses: the schema is enforced while it is generated
        if step["tool"] == "finish":
            break
        used.add(step["tool"])
        result = use(step["tool"], step["argument"])
        print(f"  {result}")
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"Result: {result}"}]
    return prompt_tokens, cached_tokens


@contextlib.contextmanager
def own_server() -> Generator[str, None, None]:
    """Starts `bough serve` on a free port of this machine, and stops it at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-P", "-m", "bough.cli", "serve", "--port", str(port)])
    try:
        while server.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{port}/health", timeout=1.0).is_success:
                    break
            time.sleep(0.2)
        else:
            sys.exit("the server did not start")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="of a server that is running, such as http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="-")
    arguments = parser.parse_args()
    with contextlib.nullcontext(arguments.base_url) if arguments.base_url else own_server() as url:
        client = openai.OpenAI(base_url=url, api_key=arguments.api_key)
        model = client.models.list().data[0].id
        counts = [solve(client, model, f"I fly to {city}. What should I take along?") for city in WEATHER]
    prompt, cached = (sum(count) for count in zip(*counts, strict=True))
    print(f"\nOf {prompt:,} prompt tokens, {cached:,} came from the radix cache ({cached / prompt:.0%}).")


if __name__ == "__main__":
    main()
