"""The ids of a model folder are AutoTokenizer's, whatever the files next to the vocabulary say; or it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from tasks.stage.errors import InputError
from tasks.vocabulary.encoding import encode, load_tokenizer
from tasks.vocabulary.hub_tokenizer import load_local_vocabulary
from tasks.vocabulary.wordpiece import build_wordpiece
from tests.tasks.tiny_model import SPECIAL

WORDS = "ada Ada cafe café CAFÉ 東 京 x ##x arger ärger Ärger naïve tab in text ent ##ent Entity entity ENT foo ##foo a"
ENTRIES = [*SPECIAL, *WORDS.split(), *"[]E1e"]
TEXTS = (
    "Ada CAFÉ café cafe\u0301 東京x",
    "\u00c4rger\x00 naïve\u200b\ttab\u00ad a\x07b",
    "[SEP] in [MASK] text [ENT] [ent] ent Entity [E1]x",
    "fooent entfoo ENT entity",
    "x" * 101,
)
BERT = {"tokenizer_class": "BertTokenizer"}
NEXT = len(ENTRIES)


def token(content: str, special: bool = False) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    return {"content": content, **flags, "normalized": not special, "special": special}


def folder(
    path: Path,
    config: dict[str, Any] | None = None,
    *,
    cased: bool = False,
    added: tuple[AddedToken, ...] = (),
    vocab_txt: bool = False,
    model: dict[str, Any] | None = None,
    **files: Any,
) -> Path:
    """A model folder: tokenizer.json or vocab.txt, config.json, and what is next to them."""
    if vocab_txt:
        (path / "vocab.txt").write_text("".join(f"{entry}\n" for entry in ENTRIES))
    else:
        saved = build_wordpiece(ENTRIES, not cased)
        for one in added:
            (saved.add_special_tokens if one.special else saved.add_tokens)([one])
        saved.save(str(path / "tokenizer.json"))
    files |= {"config": {"model_type": "bert"} if model is None else model}
    for name, values in files.items() if config is None else (*files.items(), ("tokenizer_config", config)):
        if values:
            (path / f"{name}.json").write_text(json.dumps(values))
    return path


SAME: dict[str, dict[str, Any]] = {
    "cased by its config": {"config": {**BERT, "do_lower_case": False}},
    "cased by tokenizer.json alone": {"cased": True},
    "accents kept": {"config": {**BERT, "strip_accents": False}},
    "accents stripped of a cased one": {"config": {**BERT, "do_lower_case": False, "strip_accents": True}},
    "Chinese characters not apart": {"config": {**BERT, "tokenize_chinese_chars": False}},
    "the class of config.json": {
        "model": {"model_type": "bert", "tokenizer_class": "BertTokenizerFast"},
        "config": {"do_lower_case": False},
    },
    "tokenizer.json as it is": {
        "cased": True,
        "config": {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True},
    },
    "vocab.txt alone": {"vocab_txt": True},
    "vocab.txt with added_tokens.json": {"vocab_txt": True, "added_tokens": {"[ENT]": NEXT}},
    "vocab.txt with added_tokens_decoder": {
        "vocab_txt": True,
        "config": {**BERT, "added_tokens_decoder": {"0": token("[PAD]", True), str(NEXT): token("[ENT]")}},
    },
    "vocab.txt with special_tokens_map.json": {
        "vocab_txt": True,
        "special_tokens_map": {"cls_token": "[CLS]", "additional_special_tokens": ["[E1]"]},
    },
    "an added token": {"added": (AddedToken("[ENT]"),), "config": BERT},
    "an added word": {"added": (AddedToken("ent"), AddedToken("bar")), "config": BERT},
    "an added special token": {"added": (AddedToken("[E1]", special=True, normalized=False),), "config": BERT},
    "a special token of the vocabulary": {"config": {**BERT, "additional_special_tokens": ["Entity"]}},
    "a token of transformers 5": {"config": {**BERT, "ent_token": "Entity"}},
    "a token with the blanks before it": {
        "added": (AddedToken("[ENT]"),),
        "config": {**BERT, "added_tokens_decoder": {str(NEXT): {**token("[ENT]"), "lstrip": True}}},
    },
    "flags of the config": {
        "added": (AddedToken("[ENT]"),),
        "config": {**BERT, "added_tokens_decoder": {str(NEXT): token("[ENT]", True)}},
    },
}


def require_same(path: Path) -> Tokenizer:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(path))
    ours = load_tokenizer(path)
    assert ours.get_vocab_size(with_added_tokens=True) == len(theirs)
    forged = [text for text in TEXTS if "[SEP]" in text]
    for text in TEXTS:
        found = ours.encode(text, add_special_tokens=False)
        assert encode(ours, [text]).token_ids.tolist() == found.ids
        if text not in forged:
            assert found.ids == theirs(text, add_special_tokens=False)["input_ids"], text
    for text in forged:  # "[SEP]" and "[MASK]" in a text are ordinary characters here, and all else is the same
        ids, words = theirs(text, add_special_tokens=False)["input_ids"], ours.encode(text, add_special_tokens=False)
        own = [ours.token_to_id(name) for name in SPECIAL]
        kept = [number for number, (a, b) in zip(words.ids, words.offsets, strict=True) if not _forges(text, a, b)]
        assert kept == [number for number in ids if number not in own or number == own[1]], text
    return ours


def _forges(text: str, first: int, last: int) -> bool:
    spans = [(text.index(name), text.index(name) + len(name)) for name in ("[SEP]", "[MASK]")]
    return any(start <= first and last <= stop for start, stop in spans)


@pytest.mark.parametrize("name", SAME)
def test_the_ids_are_those_of_auto_tokenizer(tmp_path: Path, name: str) -> None:
    require_same(folder(tmp_path, **SAME[name]))


@pytest.mark.parametrize("name", ["an added word", "an added special token", "vocab.txt with added_tokens.json"])
def test_what_is_written_of_it_has_the_same_ids(tmp_path: Path, name: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "ours").mkdir()
    path = folder(tmp_path / "model", **SAME[name])
    load_local_vocabulary(path, True).write(512, tmp_path / "ours")
    written = require_same(tmp_path / "ours")
    assert written.get_vocab() == load_tokenizer(path).get_vocab()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a class of its own": (
        {"vocab_txt": True, "config": {"tokenizer_class": "BertJapaneseTokenizer"}},
        "BertJapaneseTokenizer and no tokenizer.json; BertTokenizer",
    ),
    "a text for a switch": ({"config": {**BERT, "do_lower_case": "false"}}, "do_lower_case 'false'; one of"),
    "a number for a switch": ({"config": {**BERT, "strip_accents": 0}}, "strip_accents 0; one of"),
    "another token in the place of one": (
        {"config": {**BERT, "cls_token": "x"}},
        r"cls_token 'x', but its template has '\[CLS\]'",
    ),
    "not a token": ({"config": {**BERT, "eos_token": 5}}, "eos_token 5; a token is required"),
    "a token that the config lacks": (
        {"added": (AddedToken("[ENT]"),), "config": {**BERT, "added_tokens_decoder": {"0": token("[PAD]", True)}}},
        "transformers 4 and 5 read this differently",
    ),
    "an id that no one gives": (
        {"vocab_txt": True, "added_tokens": {"[ENT]": NEXT + 7}},
        rf"the id {NEXT + 7}, but AutoTokenizer gives it {NEXT}",
    ),
    "ids that are not numbers": (
        {"config": {"added_tokens_decoder": {"x": token("[ENT]")}}},
        "numbers as ids",
    ),
    "special tokens that are split": (
        {"config": {**BERT, "split_special_tokens": True, "additional_special_tokens": ["Entity"]}},
        "split_special_tokens",
    ),
    "texts cut at their beginning": ({"config": {**BERT, "truncation_side": "left"}}, "truncation_side"),
    "files by version": ({"config": {**BERT, "fast_tokenizer_files": ["tokenizer.4.json"]}}, "fast_tokenizer_files"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_read_otherwise_is_refused_by_name(tmp_path: Path, name: str) -> None:
    stated, why = REFUSED[name]
    with pytest.raises(InputError, match=why):
        load_tokenizer(folder(tmp_path, **stated))
