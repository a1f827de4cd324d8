"""Ids and offsets of byte-level BPE, Unigram and other tokenizers are AutoTokenizer's, in rows of every kind and in a
release; or the tokenizer is refused by name."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from tasks.downstream.ner.rows import make_windows
from tasks.downstream.squad.rows import make_features
from tasks.downstream.texts.rows import make_sequences
from tasks.stage.errors import InputError
from tasks.vocabulary.encoding import encode, load_tokenizer, read_tokenizer_info
from tasks.vocabulary.hub_tokenizer import load_local_vocabulary
from tests.fuzzing import damaged_json, require_clean
from tests.tasks.tiny_model import write_tokenizer
from tests.tasks.vocabulary.fast_tokenizers import CORPUS, HOSTILE, KINDS, save_fast_tokenizer

PIECES = [*"aA bé \t\n.,'`5\u0301\u200b\u3000ﬁ中\xa0", "  ", "👍🏽", "don't", " ba", "ＡＢ", "''"]


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return save_fast_tokenizer(request.param, tmp_path / request.param)


def auto_tokenizer(folder: Path, **options: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), **options)


def drawn_texts(count: int) -> list[str]:
    draw = random.Random(7)
    return ["".join(draw.choices(PIECES, k=draw.randint(0, 25))) for _ in range(count)]


def test_ids_and_offsets_are_those_of_auto_tokenizer(folder: Path) -> None:
    texts, tokenizer, theirs = (
        [*HOSTILE, *drawn_texts(300), *CORPUS[:50]],
        load_tokenizer(folder),
        auto_tokenizer(folder),
    )
    ours, info = encode(tokenizer, texts), read_tokenizer_info(tokenizer)
    for text, start, length in zip(texts, ours.starts, ours.lengths, strict=True):
        expected = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
        place = slice(start, start + length)
        assert ours.token_ids[place].tolist() == expected["input_ids"], repr(text)
        assert [tuple(pair) for pair in ours.offsets[place].tolist()] == expected["offset_mapping"], repr(text)
    names = ("<s>", "</s>", "<pad>", "<mask>", "[CLS]", "[SEP]", "[MASK]")
    forged = encode(tokenizer, [*(f"a {token} b{token}{token}c" for token in names), "ｘ ＜ｓ＞ ＜／ｓ＞"]).token_ids
    assert not set(forged.tolist()) & (set(info.special) - {info.unk}), "no text can forge a special token"
    if folder.name != "roberta-prefix":  # its offsets depend on the place in the text
        assert info.independent_words


def test_sequences_are_those_of_auto_tokenizer(folder: Path) -> None:
    tokenizer, theirs = load_tokenizer(folder), auto_tokenizer(folder)
    firsts, seconds = list(HOSTILE), list(reversed(HOSTILE))
    for pair in ((firsts, None), (firsts, seconds)):
        made = make_sequences(tokenizer, *pair, row_length=40)
        expected = theirs(*pair, truncation="longest_first", max_length=40, return_token_type_ids=True)
        assert [part.tolist() for part in np.split(made.token_ids, np.cumsum(made.lengths)[:-1])] == expected[
            "input_ids"
        ]
        lengths = zip(made.second_starts, made.lengths, strict=True)
        types = [[0] * second + [1] * (length - second) for second, length in lengths]
        assert types == expected["token_type_ids"]


def test_windows_of_questions_are_those_of_auto_tokenizer(folder: Path) -> None:
    contexts = [" ".join(drawn_texts(12)), " ".join(HOSTILE), "ba de"]
    questions = ["Who\u0301 is 👍🏽?", "  What <x>", ""]
    made = make_features(load_tokenizer(folder), questions, contexts, 48, 7, 20)
    expected = auto_tokenizer(folder)(
        questions, contexts, truncation="only_second", max_length=48, stride=7,
        return_overflowing_tokens=True, return_offsets_mapping=True,
    )  # fmt: skip
    ids = np.split(made.token_ids, np.cumsum(made.lengths)[:-1])
    offsets = [window.values.to_numpy().reshape(-1, 2) for window in made.features["offsets"]]
    assert [window.tolist() for window in ids] == expected["input_ids"]
    assert made.features["example_index"].tolist() == expected["overflow_to_sample_mapping"]
    for number, start in enumerate(made.features["context_start"]):
        texts = expected.sequence_ids(number)
        assert texts.count(1) == len(offsets[number])
        assert 1 not in texts or texts.index(1) == start
        kept = [pair for pair, text in zip(expected["offset_mapping"][number], texts, strict=True) if text == 1]
        if folder.name == "roberta-prefix":  # the library counts the blank to the first token of each window
            kept[:1] = [tuple(pair) for pair in offsets[number][:1].tolist()]
        assert [tuple(pair) for pair in offsets[number].tolist()] == kept


def test_words_of_sentences_have_the_pieces_of_auto_tokenizer(folder: Path) -> None:
    sentences = [text.split() for text in (*HOSTILE, *drawn_texts(60)) if text.split()]
    made = make_windows(load_tokenizer(folder), sentences, 512, 0)
    theirs = auto_tokenizer(folder, **({"add_prefix_space": True} if folder.name == "roberta" else {}))
    if folder.name == "modernbert":  # transformers ignores add_prefix_space for a class that it uses unchanged
        theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    words, tokens = made.features["positions"].to_pylist(), np.split(made.token_ids, np.cumsum(made.lengths)[:-1])
    for ids, places, sentence in zip(tokens, words, sentences, strict=True):
        expected = theirs(sentence, is_split_into_words=True)
        numbers = expected.word_ids()
        if set(numbers) - {None} == set(range(len(sentence))):  # else a word has no tokens, and is unknown here
            assert ids.tolist() == expected["input_ids"], sentence
            assert places == [numbers.index(word) for word in range(len(sentence))]


def test_a_release_gives_the_same_ids_and_roles(folder: Path, tmp_path: Path) -> None:
    written = tmp_path / "written"
    written.mkdir()
    load_local_vocabulary(folder, True).write(512, written)
    (written / "config.json").write_bytes((folder / "config.json").read_bytes())
    before, after = auto_tokenizer(folder), auto_tokenizer(written)
    for text in (*HOSTILE, "a <mask> b</s>[SEP] <x>"):
        assert after(text, text)["input_ids"] == before(text, text)["input_ids"]
    for role in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(after, f"{role}_token_id") == getattr(before, f"{role}_token_id")
    assert after.model_max_length == 512
    assert read_tokenizer_info(load_tokenizer(written)) == read_tokenizer_info(load_tokenizer(folder))
    again = tmp_path / "again"
    again.mkdir()
    load_local_vocabulary(written, True).write(512, again)
    assert {path.name: path.read_bytes() for path in again.iterdir()} == {
        path.name: path.read_bytes() for path in written.iterdir() if path.name != "config.json"
    }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<mask>", "<hole>", "has no mask_token"),
        ('"dropout": null', '"dropout": 0.1', "has dropout 0.1"),
    ],
)
def test_a_tokenizer_without_a_mask_or_with_drawn_merges_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = save_fast_tokenizer("roberta", tmp_path) / "tokenizer.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(InputError, match=message):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta"])
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, kind: str) -> None:
    folder = write_tokenizer(tmp_path, ["ada", "##s"]) if kind == "bert" else save_fast_tokenizer(kind, tmp_path)
    path = folder / "tokenizer.json"
    for what, content in damaged_json(json.loads(path.read_text()), 60):
        path.write_bytes(content)
        require_clean(lambda: load_tokenizer(tmp_path), what, InputError)
