"""The tokenizer: both file forms, both families, prompts, chats, bytes, and control tokens that text never produces."""

from __future__ import annotations

import json
import random
import tracemalloc
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
import tokenizers
from gguf import GGUFValueType
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from bough.runtime.checkpoints.gguf_file import GGUFFile
from bough.runtime.protocol.errors import EngineError, ModelError, RequestError
from bough.runtime.tokenizer.load import build_gguf_tokenizer, check_growth, load_tokenizer, read_gguf_tokenizer
from bough.runtime.tokenizer.tokenizer import TextPipeline, Tokenizer

CORPUS = [
    "the quick brown fox can't jump 1234 times over 56 lazy dogs",
    "def f(x):\n    return x + 1  # 'we're', I'LL\r\n\r\n",
    "日本語のテキスト and émigré café e\u0301 😀😀 naïve 3.14 ٣٤٥",
    "HTTPServer camelCase {\"key\": [1, 2]} https://example.com/a?b=c --- ...",
] * 20  # fmt: skip
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SAMPLES = [
    "the fox's 1234 dogs  can't\n\n  jump", " we'RE I'LL 56", "日本語 café e\u0301 😀", "x = f(1)\r\n\treturn", "",
    "   ", "\n", "٣٤٥½²", "<|im_end|> </s> <s> <0x41> <tool>", "a\u00a0b\u3000c", "\x00\x01\x7f", "HTTPServer//\n",
    "’s 's",
]  # fmt: skip
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def trained(pre_tokenizer: Any, normalizer: Any = None) -> tokenizers.Tokenizer:
    """A byte-level tokenizer of some hundred merges, with control tokens at the front and an added word."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([tokenizers.AddedToken("<tool>", special=False, normalized=False)])
    tokenizer.encode_special_tokens = True
    return tokenizer


def split_then_bytes(*patterns: str) -> Any:
    splits = [pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
FAMILIES: dict[str, tuple[Any, Any]] = {
    "smollm": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]), None),
    "gpt-2": (GPT2, None),
    "qwen2": (split_then_bytes(LLAMA3.replace("{1,3}", "")), normalizers.NFC()),
    "llama-bpe": (split_then_bytes(LLAMA3), None),
    "dbrx": (split_then_bytes(LLAMA3), None),
}  # fmt: skip


def gguf_fields(reference: tokenizers.Tokenizer, pre: str) -> dict[str, Any]:
    """The metadata that a converter writes for a byte-level tokenizer."""
    vocabulary = reference.get_vocab(with_added_tokens=True)
    tokens = [text for text, _ in sorted(vocabulary.items(), key=lambda item: item[1])]
    kinds = [3 if text in SPECIALS else 4 if text == "<tool>" else 1 for text in tokens]
    merges = json.loads(reference.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }


SENTENCE_PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁thequicknow",
                   "▁t", "he", "▁the", "qu", "▁qu", "ck", "ick", "▁quick", "▁▁", "ow", "now", "<mark>"]  # fmt: skip


def sentencepiece_fields(**changes: Any) -> dict[str, Any]:
    tokens = list(dict.fromkeys(SENTENCE_PIECES))
    kinds = [2, 3, 3, *([6] * 256), *([1] * (len(tokens) - 260)), 4]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": [-float(index) for index in range(len(tokens))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **{f"tokenizer.ggml.{key}": value for key, value in changes.items()},
    }


def smollm() -> Tokenizer:
    return Tokenizer(build_gguf_tokenizer(gguf_fields(trained(*FAMILIES["smollm"]), "smollm")))


SMOLLM = smollm()
SENTENCEPIECE = Tokenizer(build_gguf_tokenizer(sentencepiece_fields()))


@pytest.mark.parametrize("pre", FAMILIES)
def test_byte_level_families_split_as_the_library_does(pre):
    reference = trained(*FAMILIES[pre])
    tokenizer = Tokenizer(build_gguf_tokenizer(gguf_fields(reference, pre)))
    rng = random.Random(pre)
    chars = "".join(CORPUS[:4]) + "½²\u00a0\u3000\u200bßİﬁ٣'<|>▁"
    texts = [*SAMPLES, *("".join(rng.choices(chars, k=rng.randrange(1, 25))) for _ in range(300))]
    for text in texts:
        ids = tokenizer.encode(text)
        # llama-bpe takes a word that is a token as that token, which merges learned here lead to anyway
        assert ids == reference.encode(text, add_special_tokens=False).ids, text
        if pre != "qwen2":
            assert tokenizer.decode(ids) == text


def test_digits_of_smollm_stand_alone():
    assert SMOLLM.texts(SMOLLM.encode("in 1234"))[-4:] == ["1", "2", "3", "4"]


def test_a_word_that_is_a_token_is_taken_whole_where_the_family_says_so():
    fields = gguf_fields(trained(*FAMILIES["llama-bpe"]), "llama-bpe")
    fields["tokenizer.ggml.tokens"].append("zzqzz")  # no merges lead here
    fields["tokenizer.ggml.token_type"].append(1)
    whole = len(fields["tokenizer.ggml.tokens"]) - 1
    assert Tokenizer(build_gguf_tokenizer(fields)).encode("zzqzz") == [whole]
    assert Tokenizer(build_gguf_tokenizer({**fields, "tokenizer.ggml.pre": "dbrx"})).encode("zzqzz") != [whole]


def test_text_is_normalised_for_the_model_but_not_for_grammars():
    tokenizer = Tokenizer(build_gguf_tokenizer(gguf_fields(trained(*FAMILIES["qwen2"]), "qwen2")))
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "é"
    assert tokenizer.decode(tokenizer.vocabulary(1000).encode("e\u0301")) == "e\u0301"


@given(any_text)
def test_decode_undoes_encode(text):
    assert SMOLLM.decode(SMOLLM.encode(text)) == text
    assert SENTENCEPIECE.decode(SENTENCEPIECE.encode(text)) == text.replace("▁", " ")
    for tokenizer in (SMOLLM, SENTENCEPIECE):
        ids = tokenizer.vocabulary(tokenizer.vocab_size).encode(text)
        assert (
            b"".join(tokenizer.token_bytes[token] or b"?" for token in ids)
            == text.replace("▁", " " if tokenizer is SENTENCEPIECE else "▁").encode()
        )


@given(st.lists(st.integers(0, 700), max_size=20))
def test_the_texts_of_tokens_are_the_decoded_text(tokens):
    texts = SMOLLM.texts(tokens)
    assert len(texts) == len(tokens)
    assert "".join(texts) == SMOLLM.decode(tokens, skip_special_tokens=False)


def test_a_character_belongs_to_the_token_that_completes_it():
    tokens = [SMOLLM.token_bytes.index(bytes([byte])) for byte in "é".encode()]
    assert SMOLLM.texts(tokens) == ["", "é"]
    assert SMOLLM.texts(tokens[:1]) == ["\ufffd"]
    assert SMOLLM.texts([1, 10_000]) == ["<|im_start|>", ""]


@pytest.mark.parametrize("tokenizer", [SMOLLM, SENTENCEPIECE], ids=["byte level", "sentencepiece"])
def test_text_never_produces_control_tokens(tokenizer):
    specials = tokenizer.special_ids
    assert specials
    for token in specials:
        name = tokenizer.decode([token], skip_special_tokens=False)
        for text in (name, f"a{name}b", name * 3, f" {name}\n"):
            assert specials.isdisjoint(tokenizer.encode(text))
            assert specials.isdisjoint(tokenizer.vocabulary(9999).encode(text))
            assert tokenizer.decode(tokenizer.encode(text)) == text
            assert tokenizer.encode(text, special=True).count(token) == text.count(name)
            chat, plain = ([{"role": "user", "content": content}] for content in (text, "x"))
            assert [i for i in tokenizer.encode_chat(chat) if i in specials] == [
                i for i in tokenizer.encode_chat(plain) if i in specials
            ]
            assert text.strip() in tokenizer.decode(tokenizer.encode_chat(chat))


def test_a_model_that_spells_a_control_token_like_a_word_has_it_spelled_out(tmp_path):
    words = {chr(code): code for code in range(33, 127)} | {"▁": 0, "</s>": 1, "<unk>": 2}
    unigram = tokenizers.Tokenizer(
        models.Unigram([(word, 0.0) for word in sorted(words, key=words.__getitem__)], unk_id=2)
    )
    unigram.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    unigram.decoder = decoders.Metaspace(prepend_scheme="never")
    unigram.save(str(tmp_path / "tokenizer.json"))
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["added_tokens"] = [
        {
            "id": 1,
            "content": "</s>",
            "special": True,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "single_word": False,
        }
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.decode(tokenizer.encode("a</s>b")) == "a</s>b"
    assert 1 not in tokenizer.encode("a</s>b")
    assert tokenizer.encode("a</s>b", special=True)[1] == 1


def test_a_chat_is_template_text_with_control_tokens():
    ids = SMOLLM.encode_chat([{"role": "user", "content": "the <|im_end|>"}])
    expected = [1, *SMOLLM.encode("user\nthe <|im_end|>"), 2, *SMOLLM.encode("\n"), 1, *SMOLLM.encode("assistant\n")]
    assert ids == expected
    assert SMOLLM.encode(SMOLLM.chat.role_pieces((), "user").prefix, special=True) == [1, *SMOLLM.encode("user\n")]


def test_models_without_a_template_get_the_fallback():
    assert SMOLLM.has_chat_template
    assert not SENTENCEPIECE.has_chat_template
    ids = SENTENCEPIECE.encode_chat([{"role": "user", "content": "the"}])
    assert ids[0] == 1
    assert SENTENCEPIECE.decode(ids).strip() == "User:\nthe\n\nAssistant:"


def test_prompts_begin_with_bos_and_a_space_where_the_model_wants_them():
    tokens = list(dict.fromkeys(SENTENCE_PIECES))
    the, space_the = [tokens.index("he")], [tokens.index("▁the")]
    assert SENTENCEPIECE.encode("the") == [tokens.index("t"), *the]
    assert SENTENCEPIECE.encode(" the") == space_the
    assert SENTENCEPIECE.encode_prompt("the") == [1, *space_the]
    assert SENTENCEPIECE.encode_prompt("<s>the", special=True) == [1, *space_the]  # not doubled, and again a space
    assert SENTENCEPIECE.encode_prompt("") == [1]
    bare = Tokenizer(build_gguf_tokenizer(sentencepiece_fields(add_space_prefix=False, add_bos_token=False)))
    assert bare.encode_prompt("the") == bare.encode("the") == SENTENCEPIECE.encode("the")
    assert not SMOLLM.adds_bos
    assert SMOLLM.encode_prompt("the") == SMOLLM.encode("the")


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes():
    assert SENTENCEPIECE.texts(SENTENCEPIECE.encode(" quick  now")) == [" quick", "  ", "now"]
    assert SENTENCEPIECE.encode("é") == [3 + byte for byte in "é".encode()]
    assert SENTENCEPIECE.decode(SENTENCEPIECE.encode("a<mark>b")) == "a<mark>b"
    assert len(SENTENCEPIECE.encode("<mark>")) == 1


def test_what_ends_a_turn():
    assert SMOLLM.eos_ids == (2, 0)  # the declared one, then <|endoftext|> by its name
    assert SENTENCEPIECE.eos_ids == (2,)
    fields = gguf_fields(trained(*FAMILIES["smollm"]), "smollm")
    assert build_gguf_tokenizer({**fields, "tokenizer.ggml.eot_token_id": 7}).eos_ids == (2, 7, 0)


def test_the_vocabulary_for_grammars():
    vocabulary = SMOLLM.vocabulary(SMOLLM.vocab_size + 10)
    assert vocabulary.size == SMOLLM.vocab_size + 10
    assert vocabulary.tokens[:3] == (None, None, None)
    assert vocabulary.eos_ids == SMOLLM.eos_ids
    assert {bytes([byte]) for byte in range(256)} < set(vocabulary.tokens)
    assert any(token is not None and len(token) > 3 for token in vocabulary.tokens)
    assert SMOLLM.vocabulary(1).tokens == (None,)
    assert SMOLLM.vocabulary(1).eos_ids == (0,)


def test_unused_ids_never_stand_for_text():
    fields = gguf_fields(trained(*FAMILIES["smollm"]), "smollm")
    fields["tokenizer.ggml.tokens"].append("[PAD]")
    fields["tokenizer.ggml.token_type"].append(5)
    tokenizer = Tokenizer(build_gguf_tokenizer(fields))
    assert tokenizer.token_bytes[-1] is None
    assert tokenizer.vocab_size - 1 in tokenizer.special_ids
    assert tokenizer.vocab_size - 1 not in tokenizer.encode("[PAD]", special=True)


class PanicError(BaseException):
    """Panic of the library's native code, which is no Exception."""


@pytest.mark.parametrize("error", [RuntimeError("no"), PanicError("index out of bounds")], ids=repr)
def test_a_library_that_fails_on_a_text_fails_that_text(error, monkeypatch):
    class Broken:
        def encode(self, text, **_):
            raise error

        encode_batch_fast = encode

    for variant in ("own", "plain", "exact"):
        monkeypatch.setattr(SMOLLM._parts.pipeline, variant, Broken())
    for encode in (SMOLLM.encode, SMOLLM.encode_prompt):
        for text in ("x", "long " * 10_000):
            with pytest.raises(EngineError) as caught:
                encode(text)
            assert caught.value.code == "tokenizer_error"


def test_long_texts_are_encoded_though_the_library_has_lost_its_pool(monkeypatch):
    """If it can begin no threads for its first batch, it fails with each later one."""
    own = SMOLLM._parts.pipeline.plain

    class Poisoned:
        def encode(self, text, **settings):
            return own.encode(text, **settings)

        def encode_batch_fast(self, texts, **_):
            raise PanicError("The global thread pool has not been initialized")

    expected = SMOLLM.encode("long text " * 1_000)
    for variant in ("own", "plain", "exact"):
        monkeypatch.setattr(SMOLLM._parts.pipeline, variant, Poisoned())
    assert SMOLLM.encode("long text " * 1_000) == expected


def test_a_chat_is_no_longer_than_it_may_be():
    """The template's own text counts, names of control tokens do not; nothing is encoded of one that is too long."""
    messages = [{"role": "user", "content": "the"}]
    num_chars = sum(len(piece) for piece in SMOLLM.chat.pieces(messages) if isinstance(piece, str))
    assert SMOLLM.encode_chat(messages, max_chars=num_chars) == SMOLLM.encode_chat(messages)
    for longer in (messages * 2, [{"role": "user", "content": "the\ud800"}]):
        with pytest.raises(RequestError, match=f"at most {num_chars} are allowed") as caught:
            SMOLLM.encode_chat(longer, max_chars=num_chars)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_lone_surrogates_are_refused():
    for encode in (SMOLLM.encode, SMOLLM.encode_prompt, SMOLLM.vocabulary(9).encode):
        with pytest.raises(RequestError, match="surrogate"):
            encode("a\ud800b")
    with pytest.raises(RequestError, match="surrogate"):
        SMOLLM.encode_chat([{"role": "user", "content": "\udfff"}])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "martian"}, "martian"),
        ({"pre": 3}, "pre"),
        ({"model": "bert"}, "bert"),
        ({"model": None}, "model"),
        ({"tokens": []}, "tokens"),
        ({"tokens": [1, 2]}, "array of strings"),
        ({"merges": ["no such merge"]}, "merges"),
        ({"merges": ["qq zz"]}, "merges"),
        ({"token_type": [1]}, "token_type"),
        ({"eos_token_id": 10**6}, "eos_token_id"),
        ({"bos_token_id": "x"}, "bos_token_id"),
    ],
)
def test_metadata_that_cannot_be_used_are_named(changes, message):
    fields = gguf_fields(trained(*FAMILIES["smollm"]), "smollm")
    with pytest.raises(ModelError, match=message):
        build_gguf_tokenizer({**fields, **{f"tokenizer.ggml.{key}": value for key, value in changes.items()}})
    with pytest.raises(ModelError, match="scores"):
        build_gguf_tokenizer(sentencepiece_fields(scores=[0.0]))


def save_gguf(path: Path, fields: dict[str, Any]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in fields.items():
        kind = GGUFValueType.ARRAY if isinstance(value, list | bytes) else GGUFValueType.get_type(value)
        writer.add_key_value(key, value, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("fields", [gguf_fields(trained(*FAMILIES["smollm"]), "smollm"), sentencepiece_fields()])
def test_only_the_metadata_that_a_tokenizer_needs_are_decoded(fields: dict[str, Any], tmp_path: Path) -> None:
    unused = {"tokenizer.ggml.precompiled_charsmap": bytes(1 << 20), "tokenizer.huggingface.json": "{" * (4 << 20)}
    path = save_gguf(tmp_path / "model.gguf", {**fields, **unused})
    tracemalloc.start()
    try:
        parts = read_gguf_tokenizer(GGUFFile(path))
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
    told = build_gguf_tokenizer(fields)
    assert parts.spellings == told.spellings
    assert (parts.bos_id, parts.adds_bos, parts.eos_ids) == (told.bos_id, told.adds_bos, told.eos_ids)
    assert parts.chat_template == told.chat_template
    assert Tokenizer(parts).encode("the quick") == Tokenizer(told).encode("the quick")


@pytest.mark.parametrize(
    "key",
    [
        "ggml.model", "ggml.pre", "ggml.tokens", "ggml.token_type", "ggml.merges", "ggml.scores", "ggml.bos_token_id",
        "ggml.eos_token_id", "ggml.eot_token_id", "ggml.eom_token_id", "ggml.padding_token_id", "ggml.add_bos_token",
        "ggml.add_space_prefix", "chat_template",
    ],
)  # fmt: skip
def test_metadata_of_another_type_take_no_memory(key: str, tmp_path: Path) -> None:
    fields = gguf_fields(trained(*FAMILIES["smollm"]), "smollm")
    path = save_gguf(tmp_path / "model.gguf", {**fields, f"tokenizer.{key}": bytes(5 << 20)})
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=key):
            read_gguf_tokenizer(GGUFFile(path))
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def save_folder(folder: Path, reference: tokenizers.Tokenizer, **settings: Any) -> Path:
    reference.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", **settings}))
    return folder


def test_a_folder_is_read_as_the_library_reads_it(tmp_path):
    reference = trained(*FAMILIES["llama-bpe"])
    reference.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    save_folder(tmp_path, reference, bos_token={"content": "<|im_start|>"}, chat_template="{{ 'ignored' }}")
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5]}))
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.bos_id, tokenizer.adds_bos, tokenizer.eos_ids) == (1, True, (2, 5, 0))
    assert tokenizer.special_ids == {0, 1, 2}
    for text in SAMPLES:
        assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode_prompt(text) == reference.encode(text).ids
    assert tokenizer.encode_chat([{"role": "user", "content": "x"}])[0] == 1
    assert tokenizer.decode(tokenizer.encode("a<tool>b")) == "a<tool>b"


def test_a_template_that_is_too_long_is_not_read(tmp_path):
    save_folder(tmp_path, trained(*FAMILIES["llama-bpe"]))
    with (tmp_path / "chat_template.jinja").open("wb") as file:
        file.truncate(1 << 40)  # it takes no room
    with pytest.raises(ModelError, match=r"chat_template\.jinja: more than"):
        load_tokenizer(tmp_path)


def test_control_tokens_keep_the_ids_of_their_file(tmp_path):
    """The library gives its own numbers to added tokens where a file leaves them between others."""
    reference = trained(*FAMILIES["smollm"])
    path = save_folder(tmp_path, reference) / "tokenizer.json"
    description = json.loads(path.read_text())
    vocabulary, end = description["model"]["vocab"], "<|im_end|>"
    token = next(entry["id"] for entry in description["added_tokens"] if entry["content"] == end)
    vocabulary.pop(end, None)
    vocabulary["last"] = max(vocabulary.values()) + 5
    path.write_text(json.dumps(description))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.eos_ids[0] == token
    assert tokenizer.token_bytes[vocabulary["last"]] == b"last"


def test_what_tokens_are_said_to_go_on_from():
    texts = [text for text in SMOLLM.token_bytes if text]
    for text in (b" ", b"t", b"the", b"\xe6", b"zzzz", b"", max(texts), max(texts) + b"\xff"):
        assert SMOLLM.goes_on(text) == any(other.startswith(text) and other != text for other in texts)


@pytest.mark.parametrize("text", ["", "the", '{"name": "", "age": 0}', "a\u00e9 \u4e16"])
def test_the_fewest_tokens_are_no_more_than_those_of_encode(text):
    data, texts = text.encode(), {other for other in SMOLLM.token_bytes if other}
    fewest = SMOLLM.fewest_tokens(text)
    assert fewest <= len(SMOLLM.encode(text))
    reached = {0}
    for _ in range(fewest):
        assert len(data) not in reached
        reached = {stop for start in reached for stop in range(start + 1, len(data) + 1) if data[start:stop] in texts}
    assert len(data) in reached
    assert SMOLLM.fewest_tokens(text, fewest) == fewest
    assert SMOLLM.fewest_tokens(text, max(fewest - 1, 0)) == fewest


@pytest.mark.parametrize("text", ["a▁b", "▁", "x <0x0A> y<0x41>", "▁▁ <0x0A>▁é\n"])
def test_for_grammars_text_is_what_its_tokens_say(text):
    tokenizer = Tokenizer(build_gguf_tokenizer(sentencepiece_fields()))
    vocabulary = tokenizer.vocabulary(tokenizer.vocab_size)
    assert b"".join(vocabulary.tokens[token] or b"" for token in vocabulary.encode(text)) == text.encode()
    assert vocabulary.encode("the") == tokenizer.encode("the")


def test_both_file_forms_give_the_same_tokenizer(tmp_path):
    reference = trained(*FAMILIES["smollm"])
    from_folder = load_tokenizer(save_folder(tmp_path, reference, chat_template=CHATML, bos_token="<|im_start|>"))
    assert from_folder.token_bytes == SMOLLM.token_bytes
    assert from_folder.eos_ids == SMOLLM.eos_ids
    messages = [{"role": "user", "content": "the <|im_end|> <tool>"}]
    assert from_folder.encode_chat(messages) == SMOLLM.encode_chat(messages)


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_a_metaspace_folder_keeps_its_rule_for_the_first_space(tmp_path, scheme):
    reference = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    reference.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    reference.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    specials = ["<unk>", "<s>", "</s>"]
    alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
    reference.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=700, special_tokens=specials + alphabet, show_progress=False)
    )
    content = json.loads(reference.to_str())
    content["added_tokens"] = content["added_tokens"][:3]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    reference = tokenizers.Tokenizer.from_str(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path)
    for text in ("the quick", " the", "<s>the</s> quick", "the </s>fox"):
        assert tokenizer.encode_prompt(text, special=True) == reference.encode(text, add_special_tokens=False).ids, text
    assert tokenizer.decode(tokenizer.encode("the")) == "the"
    assert tokenizer.decode(tokenizer.encode_prompt("the")) == ("the" if scheme == "never" else " the")


def test_folders_that_cannot_be_used_are_refused(tmp_path):
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelError, match=r"\.gguf file or a folder"):
        load_tokenizer(tmp_path / "model.bin")
    with pytest.raises(ModelError):
        load_tokenizer(tmp_path / "missing.gguf")
    path = tmp_path / "tokenizer.json"
    for broken in ("", "{", "[]", "{}", '{"model": {"type": "BPE"}}', "[" * 100_000):
        path.write_text(broken)
        with pytest.raises(ModelError):
            load_tokenizer(tmp_path)
    words = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    words.save(str(path))
    with pytest.raises(ModelError, match="have no text"):
        load_tokenizer(tmp_path)
    save_folder(tmp_path, trained(*FAMILIES["gpt-2"]), chat_template="{% for %}")
    with pytest.raises(ModelError, match="template"):
        load_tokenizer(tmp_path)


def change_file(path: Path, change: Callable[[Any], Any]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


TENFOLD = replace({"String": "a"}, "a" * 10)
FIVEFOLD_MAP = b"\0\0\0\0" + b"\0b\0" + b"a" * 5 + b"\0"
GROWING = {
    "replaced again and again": ("normalizer", [TENFOLD] * 8),
    "nested": ("normalizer", [{"type": "Sequence", "normalizers": [TENFOLD] * 2}, TENFOLD]),
    "replaced at once": ("normalizer", [replace({"String": "a"}, "a" * 999_999)]),
    "by a pattern": ("normalizer", [replace({"Regex": "(?=a)"}, "a" * 99)] * 2),
    "between characters": ("normalizer", [replace({"String": ""}, "a" * 9)] * 3),
    "characters that have long forms": ("normalizer", [replace({"String": "a"}, "\ufdfa" * 8), {"type": "NFKD"}]),
    "put before": ("normalizer", [{"type": "Prepend", "prepend": "a" * 999}]),
    "bytes of bytes": ("normalizer", [{"type": "ByteLevel"}] * 20),
    "a map": ("normalizer", [{"type": "Precompiled", "precompiled_charsmap": b64encode(FIVEFOLD_MAP).decode()}] * 4),
    "words of bytes of bytes": ("pre_tokenizer", [{"type": "ByteLevel", "add_prefix_space": False}] * 20),
}


@pytest.mark.parametrize("name", GROWING)
def test_a_letter_does_not_become_thousands(tmp_path, name):
    """Eight steps that each write a letter ten times would make gigabytes of one."""
    save_folder(tmp_path, trained(*FAMILIES["gpt-2"]))
    field, steps = GROWING[name]
    parts = "normalizers" if field == "normalizer" else "pretokenizers"
    change_file(tmp_path / "tokenizer.json", lambda value: value.update({field: {"type": "Sequence", parts: steps}}))
    with pytest.raises(
        ModelError, match=r"tokenizer.json: normalizer and pre_tokenizer may turn one character into .* or more"
    ):
        load_tokenizer(tmp_path)


def test_normalizers_of_published_models_are_read(tmp_path):
    """Those of T5, ALBERT and Llama 2; their tables of forms have one character of eighteen."""
    table = b"\0\0\0\0" + ("a\0" + "\u0635" * 18 + "\0").encode()
    precompiled = {"type": "Precompiled", "precompiled_charsmap": b64encode(table).decode()}
    steps = [replace({"String": "``"}, '"'), {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]
    spaces = replace({"Regex": " {2,}"}, "\u2581")
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    check_growth(
        {"normalizer": {"type": "Sequence", "normalizers": [*steps, precompiled, spaces]}, "pre_tokenizer": metaspace}
    )
    check_growth(
        {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, replace({"String": " "}, "\u2581")],
            },
            "pre_tokenizer": None,
        }
    )
    save_folder(tmp_path, trained(*FAMILIES["gpt-2"]))
    change_file(
        tmp_path / "tokenizer.json",
        lambda value: value.update(normalizer={"type": "Sequence", "normalizers": [*steps, spaces]}),
    )
    assert load_tokenizer(tmp_path).encode("The")


@pytest.mark.parametrize(
    ("template", "ids"), [([{"SpecialToken": {"id": "x", "type_id": 0}}] * 999, [0] * 999), (["$A"] * 2, [0])]
)
def test_a_template_of_ids_does_not_become_thousands(tmp_path, template, ids):
    """One that has the text twice makes of the ids that another puts there twice as many, in a row of them."""
    save_folder(tmp_path, trained(*FAMILIES["gpt-2"]))
    text, mark = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "x", "type_id": 0}}
    one = [mark, *(text if piece == "$A" else piece for piece in template)]
    step = {
        "type": "TemplateProcessing",
        "single": one,
        "pair": one,
        "special_tokens": {"x": {"id": "x", "ids": ids, "tokens": ["x"] * len(ids)}},
    }
    processor = {"type": "Sequence", "processors": [step] * 60}
    change_file(tmp_path / "tokenizer.json", lambda value: value.update(post_processor=processor))
    with pytest.raises(ModelError, match=r"tokenizer.json: post_processor adds more than \d+ tokens"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("token", [1 << 31, (1 << 32) - 1, 1 << 22, -1, 1 << 64])
@pytest.mark.parametrize("special", [True, False])
def test_an_id_far_out_takes_no_memory(tmp_path, token, special):
    """A kilobyte of it would else be a list of as many entries."""
    save_folder(tmp_path, trained(*FAMILIES["gpt-2"]))
    entry = {"id": token, "content": "far", "special": special}
    change_file(tmp_path / "tokenizer.json", lambda value: value["added_tokens"].append(entry))
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=r"tokenizer.json: an id of added_tokens is"):
            load_tokenizer(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


def test_ids_are_bounded_by_the_model(tmp_path):
    save_folder(tmp_path, trained(*FAMILIES["gpt-2"]))
    (tmp_path / "config.json").write_text('{"vocab_size": 1000}')
    entry = {"id": 1000 + (1 << 16), "content": "far", "special": True}
    entry |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    change_file(tmp_path / "tokenizer.json", lambda value: value["added_tokens"].append(entry))
    with pytest.raises(ModelError, match=r"is 66536, not in 0 .. 66535"):
        load_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 1001}}')
    assert load_tokenizer(tmp_path).vocab_size == 1001 + (1 << 16)
    vocabulary = {"type": "BPE", "vocab": {"a": 0, "b": (1 << 32) - 1}, "merges": []}
    change_file(tmp_path / "tokenizer.json", lambda value: value.update(model=vocabulary))
    with pytest.raises(ModelError, match=r"tokenizer.json: the vocabulary has the id 4294967295"):
        load_tokenizer(tmp_path)


def test_a_files_padding_is_not_done(tmp_path):
    """It could be to any length, of which the empty text is encoded once to find what a prompt begins with."""
    save_folder(tmp_path, trained(*FAMILIES["gpt-2"]))
    expected = load_tokenizer(tmp_path).encode_prompt("hello")
    padding = {
        "strategy": {"Fixed": 1 << 40}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "a",
    }  # fmt: skip
    change_file(tmp_path / "tokenizer.json", lambda value: value.update(padding=padding))
    assert load_tokenizer(tmp_path).encode_prompt("hello") == expected


def test_a_panic_of_the_library_is_an_error_like_others(tmp_path, monkeypatch):
    panic = type("PanicException", (BaseException,), {})

    def fail(*_: Any, **__: Any) -> Any:
        raise panic("index out of bounds")

    tokenizer = load_tokenizer(save_folder(tmp_path, trained(*FAMILIES["gpt-2"])))
    monkeypatch.setattr(tokenizer._parts.pipeline, "plain", SimpleNamespace(encode=fail, encode_batch_fast=fail))
    for text in ("short", "long " * 2000):
        with pytest.raises(EngineError) as caught:
            tokenizer.encode(text)
        assert caught.value.code == "tokenizer_error"
    monkeypatch.setattr(TextPipeline, "_backend", fail)
    with pytest.raises(ModelError, match=r"^tokenizer.json: .*PanicException: index out of bounds"):
        load_tokenizer(tmp_path)


def test_ends_of_a_turn_that_are_no_ids_are_left_out(tmp_path):
    save_folder(tmp_path, trained(*FAMILIES["gpt-2"]))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": [-1, 3, 1 << 40, "x", None, True, 2.5]}))
    tokenizer = load_tokenizer(tmp_path)
    assert 3 in tokenizer.eos_ids
    assert all(0 <= token < tokenizer.vocab_size for token in tokenizer.eos_ids)


def test_a_long_sentencepiece_token_is_cut_one_way_at_a_time() -> None:
    """One of 8 kB took 258 MB, and one of 32 kB four gigabytes."""
    fields = sentencepiece_fields()
    fields["tokenizer.ggml.tokens"] = [*fields["tokenizer.ggml.tokens"], "\U0001f600" + "a" * 4096]
    fields["tokenizer.ggml.token_type"] = [*fields["tokenizer.ggml.token_type"], 1]
    fields["tokenizer.ggml.scores"] = [*fields["tokenizer.ggml.scores"], -1e6]
    tracemalloc.start()
    build_gguf_tokenizer(fields)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20


def test_long_sentencepiece_tokens_are_not_cut_in_all_ways():
    long = sentencepiece_fields()
    long["tokenizer.ggml.tokens"] = [*long["tokenizer.ggml.tokens"][:-1], "x" * 100_000]
    with pytest.raises(ModelError, match=r"tokens has tokens that are too long"):
        build_gguf_tokenizer(long)


@pytest.mark.parametrize("added", [True, False])
def test_a_token_is_no_book(tmp_path, added):
    """Each that is generated could add megabytes to an answer."""

    def lengthen(description):
        vocabulary, others = description["model"]["vocab"], description["added_tokens"]
        known = {*vocabulary.values(), *(other["id"] for other in others)}
        long = "y" * 10_000
        if added:
            flags: dict[str, Any] = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
            others.append({"id": max(known) + 1, "content": long, **flags})
        else:
            vocabulary[long] = max(known) + 1

    save_folder(tmp_path, trained(*FAMILIES["gpt-2"]))
    change_file(tmp_path / "tokenizer.json", lengthen)
    with pytest.raises(ModelError, match=r"the vocabulary has a token of 10000 characters, at most 8192 are accepted"):
        load_tokenizer(tmp_path)


@pytest.fixture(scope="module")
def default_tokenizer(default_model):
    return load_tokenizer(default_model)


@pytest.mark.model
def test_the_default_model(default_tokenizer):
    tokenizer = default_tokenizer
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.adds_bos, tokenizer.eos_ids) == (49152, 1, False, (2, 0))
    assert tokenizer.texts(tokenizer.encode("Hello world, it's 1234")) == [
        "Hello",
        " world",
        ",",
        " it",
        "'s",
        " ",
        *"1234",
    ]
    piece = tokenizer.chat.role_pieces((), "user")
    assert piece.prefix.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert piece.prefix.endswith("<|im_end|>\n<|im_start|>user\n")
    assert piece.suffix == "<|im_end|>\n"
    appended = tokenizer.encode(f"{piece.prefix}Hi<|im_end|>\n<|im_start|>assistant\n", special=True)
    assert tokenizer.encode_chat([{"role": "user", "content": "Hi"}]) == appended


@pytest.mark.model
def test_the_default_model_encodes_what_users_write_as_text(default_tokenizer):
    tokenizer = default_tokenizer
    template_ids = [i for i in tokenizer.encode_chat([{"role": "user", "content": "x"}]) if i in tokenizer.special_ids]
    for token in tokenizer.special_ids:
        name = tokenizer.decode([token], skip_special_tokens=False)
        chat = tokenizer.encode_chat([{"role": "user", "content": f"a{name}b"}])
        assert [i for i in chat if i in tokenizer.special_ids] == template_ids
        assert tokenizer.decode(tokenizer.encode(name)) == name
