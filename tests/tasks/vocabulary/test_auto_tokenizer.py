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
    "in text [ENT] [ent] ent Entity [E1]x",
    "fooent entfoo ENT entity",
    "x" * 101,
)
FORGED = "Ada [SEP] in [MASK] text [ENT] ent Entity [E1]x"
NEXT = len(ENTRIES)


def token(content: str, special: bool = False, **flags: bool) -> dict[str, Any]:
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not special, "special": special}
    return {"content": content, **usual, **flags}


def bert(**values: Any) -> dict[str, Any]:
    """What stands in the tokenizer_config.json of a model folder."""
    return {"tokenizer_config": {"tokenizer_class": "BertTokenizer", **values}}


def folder(
    path: Path,
    *,
    cased: bool = False,
    added: tuple[AddedToken, ...] = (),
    vocab_txt: bool = False,
    **files: Any,
) -> Path:
    """A model folder: tokenizer.json or vocab.txt, config.json, and what is next to them."""
    if vocab_txt:
        (path / "vocab.txt").write_text("".join(f"{entry}\n" for entry in ENTRIES))
    else:
        saved = build_wordpiece(ENTRIES, not cased)
        for item in added:
            (saved.add_special_tokens if item.special else saved.add_tokens)([item])
        saved.save(str(path / "tokenizer.json"))
    for name, values in {"config": {"model_type": "bert"}, **files}.items():
        (path / f"{name}.json").write_text(json.dumps(values))
    return path


ENT, SPECIAL_E1 = (AddedToken("[ENT]"),), (AddedToken("[E1]", special=True, normalized=False),)
SAME: dict[str, dict[str, Any]] = {
    "cased by its config": bert(do_lower_case=False),
    "cased by tokenizer.json alone": {"cased": True},
    "accents kept": bert(strip_accents=False),
    "accents stripped of a cased one": bert(do_lower_case=False, strip_accents=True),
    "Chinese characters not apart": bert(tokenize_chinese_chars=False),
    "the class of config.json": {
        "config": {"model_type": "bert", "tokenizer_class": "BertTokenizerFast"},
        "tokenizer_config": {"do_lower_case": False},
    },
    "tokenizer.json as it is": {"cased": True, **bert(tokenizer_class="PreTrainedTokenizerFast", do_lower_case=True)},
    "vocab.txt alone": {"vocab_txt": True},
    "vocab.txt with added_tokens.json": {"vocab_txt": True, "added_tokens": {"[ENT]": NEXT}},
    "vocab.txt with added_tokens_decoder": {
        "vocab_txt": True,
        **bert(added_tokens_decoder={"0": token("[PAD]", True), str(NEXT): token("[ENT]")}),
    },
    "vocab.txt with special_tokens_map.json": {
        "vocab_txt": True,
        "special_tokens_map": {"cls_token": "[CLS]", "additional_special_tokens": ["[E1]"]},
    },
    "an added token": {"added": ENT, **bert()},
    "an added word": {"added": (AddedToken("ent"), AddedToken("bar")), **bert()},
    "an added special token": {"added": SPECIAL_E1, **bert()},
    "a special token of the vocabulary": bert(additional_special_tokens=["Entity"]),
    "a token of transformers 5": bert(ent_token="Entity"),
    "a token with the blanks before it": {
        "added": ENT,
        **bert(added_tokens_decoder={str(NEXT): token("[ENT]", lstrip=True)}),
    },
    "flags of the config": {"added": ENT, **bert(added_tokens_decoder={str(NEXT): token("[ENT]", True)})},
}


def require_same(path: Path) -> Tokenizer:
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(str(path)), load_tokenizer(path)
    assert ours.get_vocab_size(with_added_tokens=True) == len(theirs)
    for text in TEXTS:
        assert encode(ours, [text]).token_ids.tolist() == theirs(text, add_special_tokens=False)["input_ids"], text
    special = {ours.token_to_id(name) for name in SPECIAL if name != "[UNK]"}
    assert not special & {*encode(ours, [FORGED]).token_ids.tolist()}, "no text can forge a special token"
    return ours


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


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"vocab_txt": True, "tokenizer_config": {"tokenizer_class": "BertJapaneseTokenizer"}},
        "BertJapaneseTokenizer and no tokenizer.json",
    ),
    (bert(do_lower_case="false"), "do_lower_case 'false'"),
    (bert(strip_accents=0), "strip_accents 0"),
    (bert(cls_token="x"), r"cls_token 'x', but its template has '\[CLS\]'"),
    (bert(eos_token=5), "eos_token 5"),
    ({"added": ENT, **bert(added_tokens_decoder={"0": token("[PAD]", True)})}, "transformers 4 and 5"),
    ({"vocab_txt": True, "added_tokens": {"[ENT]": NEXT + 7}}, f"the id {NEXT + 7}.* gives it {NEXT}"),
    ({"tokenizer_config": {"added_tokens_decoder": {"x": token("[ENT]")}}}, "numbers as ids"),
    (bert(split_special_tokens=True, additional_special_tokens=["Entity"]), "split_special_tokens"),
    (bert(truncation_side="left"), "truncation_side"),
    (bert(fast_tokenizer_files=["tokenizer.4.json"]), "fast_tokenizer_files"),
]


@pytest.mark.parametrize(("files", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_read_otherwise_is_refused_by_name(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_tokenizer(folder(tmp_path, **files))
