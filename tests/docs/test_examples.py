"""The examples, on scripted answers: they record what they say they record, and read it back."""

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

import bough

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name):
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="example"))


@pytest.fixture
def use():
    """Sets a backend with answers, for one test."""

    def set_backend(answers=None):
        backend = bough.MockBackend(answers)
        bough.set_default_backend(backend)
        return backend

    yield set_backend
    bough.set_default_backend(None)


def test_demo_is_one_request_with_typed_values_and_a_timeline(use):
    city = {"city": "Lisbon", "country": "Portugal", "river": "Tagus", "year_of_earthquake": 1755}
    backend = use({"title": "A title", "summary": "A summary.", "city": json.dumps(city), "kind": " a city"})
    state = load("demo").main.run(trace=True)
    assert len(backend.requests) == 1
    assert "City(city='Lisbon', country='Portugal', river='Tagus', year_of_earthquake=1755)" in state.ret_value
    assert "about    a city " in state.ret_value
    assert "prompt tokens" in state.ret_value
    assert state.timeline().summary()["branches"] == 5


def test_few_shot_questions_share_the_examples(use):
    backend = use({"answer": " Four"})
    example = load("few_shot_qa")
    states = example.answer.run_batch([{"question": "2 + 2?"}, {"question": "3 + 1?"}])
    assert [state["answer"] for state in states] == [" Four", " Four"]
    assert all(program.ops[0].parts[0].startswith(example.EXAMPLES) for program in backend.requests)


def test_tree_of_thought_is_one_request_with_two_four_and_eight_branches(use, capsys):
    backend = use(lambda before, name: "Yes" if name == "good" else f" {name} of {before.count('.')}")
    state = load("tree_of_thought").story.run("a fox")
    assert len(backend.requests) == 1
    kinds = [type(op).__name__ for op in backend.requests[0].ops]
    assert (kinds.count("Gen"), kinds.count("Select")) == (2 + 4 + 8, 8)
    assert state.ret_value.startswith("Once upon a time, sentence 1")
    assert "path by path" in capsys.readouterr().out


def test_the_judgements_are_merged_without_reading_them(use):
    backend = use({"judgement": ["one", "two", "three"], "verdict": " fair"})
    state = load("judge").judge.run()
    assert len(backend.requests) == 1
    assert "- clarity: one\n- evidence: two\n- style: three" in state.text()
    assert state["verdict"] == " fair"


def test_extract_gives_objects(use):
    use({"person": '{"name": "Ada", "age": 36, "job": "writer", "city": "London"}'})
    example = load("extract")
    person = example.extract.run("Ada is 36.").ret_value
    assert person == example.Person(name="Ada", age=36, job="writer", city="London")
    assert (EXAMPLES / "people.txt").read_text(encoding="utf-8").count("\n\n") == 3


def test_chat_sends_a_request_for_each_turn(use, capsys):
    backend = use({"answer": ["one", "two"]})
    load("chat").chat.run(("first?", "second?"))
    assert len(backend.requests) == 2
    assert [program.resume for program in backend.requests] == [False, True]
    assert "> second?\ntwo" in capsys.readouterr().out


def test_samples_vote(use):
    use({"thought": [" 1 + 1 = 2.", " 1 + 1 = 3.", " 1 + 1 = 2."], "answer": ["2", "3", "2"]})
    state = load("self_consistency").consistent.run("1 + 1?", num_samples=3)
    assert state.ret_value == (2, [2, 3, 2])


def test_the_agent_loop_is_one_request_that_calls_a_tool(use):
    backend = use(
        {"thought": " Hm.", "action": [" Look up", " Look up", " Answer"], "topic": [" Linz", " Graz"], "answer": " No"}
    )
    state = load("react").react.run("Is Linz larger than Graz?")
    assert len(backend.requests) == 1
    assert state.history("observation") == ["Linz has 200 thousand inhabitants.", "Graz has 300 thousand inhabitants."]
    assert state.ret_value.endswith("inhabitants.\nThought: Hm.\nAction: Answer No")


def test_summaries_are_summed_up_without_reading_them(use):
    backend = use({"summary": [" One.", " Two."], "digest": " Both."})
    state = load("map_reduce").digest.run(["first", "second"])
    assert state.ret_value == (["One.", "Two."], "Both.")
    assert len(backend.requests) == 1
    assert state.text().endswith("Text: One. Two.\nIn short: Both.")


def test_each_turn_of_the_constrained_chat_is_an_object(use, capsys):
    backend = use({"reply": ['{"answer": "A", "sure": true}', '{"answer": "B", "sure": false}']})
    example = load("constrained_chat")
    replies = example.chat.run(["a?", "b?"]).ret_value
    assert replies == [example.Reply(answer="A", sure=True), example.Reply(answer="B", sure=False)]
    assert [program.resume for program in backend.requests] == [False, True]
    assert "> b?\n" in capsys.readouterr().out


class FakeClient:
    """Stands for `openai.OpenAI`: `chat.completions.create` gives the answers in order."""

    def __init__(self, answers):
        self.answers = list(answers)
        self.calls = []
        self.tools = []
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    def create(self, **fields):
        self.calls.append([dict(message) for message in fields["messages"]])
        steps = fields["response_format"]["json_schema"]["schema"]["anyOf"]
        self.tools.append([step["properties"]["tool"]["const"] for step in steps])
        usage = SimpleNamespace(prompt_tokens=10, prompt_tokens_details=SimpleNamespace(cached_tokens=6))
        message = SimpleNamespace(content=json.dumps(self.answers.pop(0)))
        return SimpleNamespace(choices=[SimpleNamespace(message=message)], usage=usage)


def test_each_call_of_the_agent_extends_the_one_before():
    pytest.importorskip("openai")
    example = load("agent")
    client = FakeClient(
        [
            {"tool": "get_weather", "argument": "Oslo"},
            {"tool": "get_stock", "argument": "winter coat"},
            {"tool": "finish", "argument": "We have none."},
        ]
    )
    assert example.solve(client, "model", "I fly to Oslo.") == (30, 18)
    first, second, third = client.calls
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert client.tools == [["get_weather", "get_stock"], ["get_stock"], ["finish"]]
    assert second[-1]["content"] == "Result: snow, -3 degrees"
    assert third[-1]["content"] == "Result: 0 pieces"


def test_the_agent_gives_up_after_some_steps():
    pytest.importorskip("openai")
    client = FakeClient([{"tool": "get_stock", "argument": "boat"}] * 9)
    load("agent").solve(client, "model", "I fly to Oslo.", max_steps=2)
    assert len(client.calls) == 2
    assert client.calls[1][-1]["content"] == "Result: unknown article 'boat'"
