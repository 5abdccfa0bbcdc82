"""`accepts` says what decoding says, for any tokenizer, again and again."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from bough.constrain import InvalidSchemaError, Vocabulary, accepts
from bough.constrain.accepting import walk
from bough.constrain.vocabulary.adapters import as_vocabulary, byte_vocabulary

OBJECT: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(['{"a": 12, "b": "hello world"}'] * 10, trainer)
    return tokenizer


def sentence_piece() -> Tokenizer:
    """A tokenizer with byte fallback that puts a space before every text."""
    pieces = [
        ("<unk>", 0.0),
        *((f"<0x{byte:02X}>", -5.0) for byte in range(256)),
        ("▁", -1.0),
        ("▁a", -1.0),
        ('"', -1.0),
    ]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


class Ours:
    """The part of the runtime's tokenizer that compilers use."""

    vocab_size = 257

    def vocabulary(self, size: int) -> Vocabulary:
        assert size == self.vocab_size
        return byte_vocabulary()


@pytest.fixture(params=[byte_level, sentence_piece, Ours, byte_vocabulary], ids=lambda make: make.__name__)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return request.param()


def test_every_kind_of_tokenizer(tokenizer: Any) -> None:
    for text in ('{"a": 12}', '{"a": 12, "b": "é 東"}', '{"b": "a a", "a": 0}'):
        assert accepts(OBJECT, text, tokenizer), text
    for text in ('{"a": "x"}', "{}", '{"a": 12', '{"a": 12} ', '{"c": 1}', ""):
        assert not accepts(OBJECT, text, tokenizer), text


def test_every_form_of_a_schema() -> None:
    vocabulary = byte_vocabulary()
    assert accepts('{"type": "integer"}', "1", vocabulary)
    assert accepts({"type": "integer"}, "1", vocabulary)
    assert accepts(True, "[1]", vocabulary)
    for schema in (False, "{", {"type": "strnig"}):
        with pytest.raises(InvalidSchemaError):
            accepts(schema, "1", vocabulary)


def test_the_order_of_properties_can_be_the_schemas() -> None:
    vocabulary = byte_vocabulary()
    swapped = '{"b": "x", "a": 1}'
    assert accepts(OBJECT, swapped, vocabulary)
    assert not accepts(OBJECT, swapped, vocabulary, property_order="schema")


def test_what_masks_cannot_enforce_is_checked() -> None:
    schema = {"not": {"uniqueItems": True}}
    assert accepts(schema, '["a", "a"]', byte_vocabulary())
    assert not accepts(schema, '["a", "b"]', byte_vocabulary())


def test_text_that_is_not_unicode_is_no_text() -> None:
    assert not accepts({"type": "string"}, '"\ud800"', byte_vocabulary())


def test_other_things_are_no_tokenizers() -> None:
    with pytest.raises(TypeError, match="int"):
        accepts({}, "1", 3)
    with pytest.raises(TypeError, match="tokenizer"):
        as_vocabulary(object())


def test_thousands_of_calls_are_quick() -> None:
    vocabulary = byte_vocabulary()
    accepts({"type": "integer"}, "0", vocabulary)
    started = time.monotonic()
    for number in range(2_000):
        assert accepts({"type": "integer"}, str(number), vocabulary)
    assert time.monotonic() - started < 2.0


def _in_a_fork(schema: dict[str, Any]) -> bool:
    return accepts(schema, '{"a": 1}', VOCABULARY)


VOCABULARY = byte_vocabulary()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_works_in_a_process_that_was_forked_off() -> None:
    assert accepts({"anyOf": [OBJECT, {"type": "null"}]}, "null", VOCABULARY)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(_in_a_fork, ({"anyOf": [OBJECT, {"type": "null"}]},)).get(timeout=30)


def test_a_refusal_says_where_and_what_was_allowed(compiler: Any, vocabulary: Vocabulary) -> None:
    from bough.constrain import Choice

    grammar = compiler.compile(Choice(("Paris", "Par", "Rome")))
    assert walk(grammar, "Paris", vocabulary) is None
    refusal = walk(grammar, "Pax", vocabulary)
    assert refusal is not None and refusal.offset == 2 and b"r" in refusal.allowed and not refusal.may_end
    refusal = walk(grammar, "Par!", vocabulary)
    assert refusal is not None and refusal.may_end
    refusal = walk(grammar, "Romeo", vocabulary)
    assert refusal == (4, (), True)
    refusal = walk(grammar, "Ro", vocabulary)
    assert refusal is not None and refusal.offset == 2 and not refusal.may_end and b"m" in refusal.allowed
