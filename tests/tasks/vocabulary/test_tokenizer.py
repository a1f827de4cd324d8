"""The tokenizer stage: the same vocabulary everywhere, loadable everywhere, and what is refused."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tokenizers.pre_tokenizers import BertPreTokenizer

from tasks.corpus import world
from tasks.params.schema import TokenizerParams
from tasks.records import shards
from tasks.stage.errors import InputError
from tasks.vocabulary import word_counts, wordpiece
from tasks.vocabulary.tokenizer import make_tokenizer
from tasks.vocabulary.wordpiece import SPECIAL_TOKENS, train_vocabulary
from tests.hub_server import HubServer
from tests.places import ROOT
from tests.tasks.pretraining.row_inputs import real_data, write_corpus

FILES = ["special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]
VOCABULARY = [*SPECIAL_TOKENS, "ants", "dig", "##ging", "who", "?", ".", "A", "a", "##nts", "e"]


def params(**values: Any) -> TokenizerParams:
    return TokenizerParams(**{"source": "train", "vocabulary_size": 400, **values})


def train(texts: list[str], size: int, lowercase: bool) -> list[str]:
    words = word_counts.count_words([pa.array(texts)], lowercase)
    return train_vocabulary(word_counts.strip_words(words).words if lowercase else words, size, lowercase)


def write_vocabulary(path: Path, entries: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(entry + "\n" for entry in entries), encoding="utf-8")
    return path


def refusal(tmp_path: Path, **values: Any) -> str:
    """The message of the refusal, after checking that nothing was left behind."""
    with pytest.raises(InputError) as caught:
        make_tokenizer(params(**values), 512, tmp_path / "corpus", tmp_path / "made/out")
    assert not list((tmp_path / "made").glob("*")), "nothing half-written"
    return str(caught.value)


def load(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


TRAIN = """
import hashlib, sys
from pathlib import Path
from tests.tasks.vocabulary.test_tokenizer import train
lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
print(hashlib.sha256("\\n".join(train(lines, 700, True)).encode()).hexdigest())
"""


def test_the_vocabulary_is_the_same_in_every_process_and_with_any_number_of_threads(tmp_path: Path) -> None:
    """The library alone fails this: it numbers characters in the order of a randomly seeded hash map."""
    # many ties, letters with marks inside words (not folded by lower case), signs that join words, Chinese
    lines = [document.text for document in world.make_documents(8, "corpus", 150)]
    lines += ["\u0939\u093f\u0928\u094d\u0926\u0940 \u0939\u0948 x\u00b0y \u4e2d\u6587 \ud55c\uad6d\uc5b4"] * 3
    path = write_vocabulary(tmp_path / "lines.txt", lines)
    digests = {hashlib.sha256("\n".join(train(lines, 700, True)).encode()).hexdigest()}
    for hash_seed, threads in (("0", "1"), ("2", "5")):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "RAYON_NUM_THREADS": threads}
        command = [sys.executable, "-c", TRAIN, str(path)]
        digests.add(subprocess.check_output(command, cwd=ROOT, env=environment, text=True).strip())
    assert len(digests) == 1
    assert train(lines, 700, True) == train(lines[::-1], 700, True), "the order of documents does not matter"


TRICKY = [
    "Caf\u00e9 na\u00efve co\u0301operate A\u030angstr\u00f6m \u0130stanbul \u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2",
    "\u6771\u4eac\u90fd town\u6771\u4eac 2,000 $3.50 e-mail a_b 'quoted' \u201ccurly\u201d \u2026 \u2013",
    "no\u00a0break em\u2003space line\u2028end zero\u200bwidth soft\u00adhyphen bom\ufeff \ufffd nul\x00l",
    "page\x0cbreak tab\x0bv unit\x1fs next\x85line \x1c\x1d\x1e",
    "\t tabs\tand\nlines\r\n ",
    "x" * 300,
    "",
]


CHARACTERS = [f"a{chr(code)}B {chr(code)}" for code in (*range(0x3400), *range(0xF900, 0x110000, 211))]


@pytest.mark.parametrize(
    ("lowercase", "strips", "cached"), [(True, True, 1 << 17), (True, False, 3), (False, True, 3), (False, False, 9)]
)
def test_counting_distinct_words_gives_what_the_library_makes_of_whole_texts(
    lowercase: bool, strips: bool, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_counts, "CACHED_WORDS", cached)
    texts = [*TRICKY, *CHARACTERS, *(made.text for made in world.make_documents(1, "corpus", 150))] * 2
    normalizer, pre_tokenizer = wordpiece.make_normalizer(lowercase, strips), BertPreTokenizer()
    expected: Counter[str] = Counter()
    for text in texts:
        expected.update(piece for piece, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(text)))
    arrays = (pa.array([*texts[start : start + 999], None]) for start in range(0, len(texts), 999))
    words = word_counts.count_words(arrays, lowercase)
    assert as_dict(word_counts.strip_words(words).words if strips else words) == expected


def as_dict(words: pa.Table) -> dict[str, int]:
    counts = dict(zip(words["word"].to_pylist(), words["count"].to_pylist(), strict=True))
    assert len(counts) == len(words), "each word once"
    return counts


def test_counts_of_shards_are_added_up_and_the_rarest_words_dropped_in_a_fixed_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_corpus(tmp_path / "corpus", ["d a", "a b c", "a", "b d"], rows_per_group=1)
    monkeypatch.setattr(shards, "SHARD_BYTES", 1)
    monkeypatch.setattr(word_counts, "LEAST_ADDED", 3)
    files = sorted(corpus.glob("*.parquet"))
    assert as_dict(word_counts.count_corpus_words(files, True, tmp_path / "w")) == {"a": 3, "b": 2, "d": 2, "c": 1}
    monkeypatch.setattr(word_counts, "MAX_WORDS", 2)
    assert as_dict(word_counts.count_corpus_words(files, True, tmp_path / "w")) == {"a": 3, "b": 2}
    monkeypatch.setattr(word_counts, "MAX_BYTES", 1)
    assert as_dict(word_counts.count_corpus_words(files, True, tmp_path / "w")) == {"a": 3}
    assert not (tmp_path / "w").exists()


def test_characters_are_kept_by_coverage_as_far_as_there_is_room() -> None:
    """Chinese has thousands of characters, each a word by itself; 1,000 of them would leave much text unknown."""
    text = "".join(chr(0x4E00 + number) * 2 for number in range(3000))
    assert len(train([text], 8000, True)) == len(SPECIAL_TOKENS) + 2999, "99.95 % of 6,000"
    assert len(train([text], 2000, True)) == 2000
    hangul = train([" ".join(chr(0xAC00 + number) for number in range(3000))], 2000, False)
    assert sum(len(entry) == 1 for entry in hangul) == 500, "of letters half, with ## in front and without"
    few = train(["the ants dig and the quick brown fox jumps over lazy dogs"] * 50 + ["\u4e2d"], 100, True)
    assert sum(len(entry) == 1 for entry in few) == 25, "a quarter of 100: the rarest go"
    assert "\u4e2d" not in few


def test_a_vocabulary_of_english_text_has_the_bytes_that_it_always_had(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [document.text for document in world.make_documents(1, "corpus", 2000)]
    for size, digest in ((400, "db7218b0a025"), (2000, "14149cf7d13a")):
        entries = train(texts, size, True)
        assert hashlib.sha256("\n".join(entries).encode()).hexdigest().startswith(digest)
    assert "Caf\u00e9" in train(["Caf\u00e9 Caf\u00e9"] * 9, 400, False)
    words = word_counts.count_words([pa.array(texts[:150])], True)
    monkeypatch.setattr(wordpiece, "MAX_TRAINED", pc.sum(words["count"]).as_py())
    assert train(texts[:150] * 20, 400, True) == train(texts[:150], 400, True), "many words by a share of their counts"


def read_case(name: str) -> list[str]:
    return real_data(f"cases/corpora/{name}").read_text(encoding="utf-8").split("\n\n")


@pytest.mark.parametrize(
    ("name", "words", "share"),
    [
        ("vietnamese-tones-lost.txt", "ma m\u00e1 m\u00e0 m\u1ea1", "77.6%"),
        ("hindi-danda-sentences.txt", "\u092e\u0947\u0902 \u092e\u0948\u0902", "47.6%"),
    ],
)
@pytest.mark.parametrize(("strips", "choice"), [(None, "true to remove"), (True, "false to keep"), (False, "")])
def test_words_that_differ_in_their_marks_stay_apart_unless_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, words: str, share: str, strips: Any, choice: str
) -> None:
    corpus = write_corpus(tmp_path / "corpus", read_case(name))
    made = make_tokenizer(params(strip_accents=strips), 512, corpus, tmp_path / "out")
    auto = load(tmp_path / "out")
    ids = [auto(word, add_special_tokens=False)["input_ids"] for word in words.split()]
    assert len({tuple(tokens) for tokens in ids}) == (1 if strips else len(ids))
    assert auto.unk_token_id not in sum(ids, [])
    assert auto(words, "x")["input_ids"] == made.whole.encode(words, "x").ids
    printed = capsys.readouterr().err
    assert (f"{share} of the words" in printed) == (strips is not False)
    assert choice in printed


def test_few_accents_are_removed_as_by_bert_and_a_given_vocabulary_keeps_them_if_asked(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", ["a caf\u00e9 in a long street " + "of the town " * 99] * 9)
    made = make_tokenizer(params(), 512, corpus, tmp_path / "out")
    assert made.whole.encode("Caf\u00e9").ids == made.whole.encode("cafe").ids
    path = write_vocabulary(tmp_path / "vocab.txt", [*VOCABULARY, "caf\u00e9", "cafe"])
    for given, shown in ((None, "cafe"), (False, "caf\u00e9")):
        values = params(source="file", path=str(path), strip_accents=given)
        made = make_tokenizer(values, 512, tmp_path, tmp_path / f"given-{given}")
        assert made.whole.encode("Caf\u00e9", add_special_tokens=False).tokens == [shown]
        assert load(tmp_path / f"given-{given}").tokenize("Caf\u00e9") == [shown]


def test_a_text_without_blanks_is_refused_before_it_is_learned_and_is_learned_with_blanks(tmp_path: Path) -> None:
    texts = read_case("thai-no-blanks-all-unk.txt")
    write_corpus(tmp_path / "corpus", texts)
    assert "100.0% of the characters" in refusal(tmp_path)
    parts = [" ".join(text[start : start + 8] for start in range(0, len(text), 8)) for text in texts]
    made = make_tokenizer(params(), 512, write_corpus(tmp_path / "parts", parts), tmp_path / "out")
    assert "[UNK]" not in made.whole.encode(parts[0]).tokens


def test_auto_tokenizer_loads_it_fast_and_pairs_have_two_types(tmp_path: Path) -> None:
    texts, trained = [document.text for document in world.make_documents(1, "corpus", 500)], tmp_path / "out"
    make_tokenizer(params(), 256, write_corpus(tmp_path / "corpus", texts), trained)
    entries = (trained / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert entries[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(entries) == len(set(entries)) == 400
    assert sorted(path.name for path in trained.iterdir()) == FILES
    tokenizer = load(trained)
    assert tokenizer.is_fast
    assert tokenizer.model_max_length == 256
    assert [getattr(tokenizer, f"{role}_token_id") for role in ("pad", "unk", "cls", "sep", "mask")] == [*range(5)]
    encoded = tokenizer("Who rules?", "It was.", return_offsets_mapping=True)
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    assert tokens == ["[CLS]", "who", "rules", "?", "[SEP]", "it", "was", ".", "[SEP]"]
    assert encoded["token_type_ids"] == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert encoded["offset_mapping"][1:4] == [(0, 3), (4, 9), (9, 10)]
    assert tokenizer.tokenize("who [MASK] ?") == ["who", "[MASK]", "?"]


def test_the_real_bert_vocabulary_keeps_its_ids(tmp_path: Path) -> None:
    path = real_data("vocab/bert-base-uncased.txt")
    make_tokenizer(params(source="file", path=str(path)), 512, tmp_path, tmp_path / "out")
    # line numbers of the file, minus one: [CLS] 101, hello 7592, world 2088, [SEP] 102
    assert load(tmp_path / "out")("Hello world")["input_ids"] == [101, 7592, 2088, 102]
    assert (tmp_path / "out/vocab.txt").read_bytes() == path.read_bytes()


def test_a_folder_with_the_one_vocabulary_will_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_vocabulary(tmp_path / "in/bert.txt", [*VOCABULARY, "Ants", "Bees"])
    (tmp_path / "in/README.md").write_text("words", encoding="utf-8")
    made = make_tokenizer(params(source="file", path=str(tmp_path / "in")), 512, tmp_path, tmp_path / "out")
    assert list(made.entries) == [*VOCABULARY, "Ants", "Bees"]
    assert "3 of 12 entries have capitals" in caplog.text, "under lower case"
    write_vocabulary(tmp_path / "in/other.txt", VOCABULARY)
    assert "(bert.txt, other.txt)" in refusal(tmp_path, source="file", path=str(tmp_path / "in"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n\n", "is empty"),
        (b"[PAD]\n\x00\x01\n", "is binary"),
        (b"[PAD]\ncaf\xe9\n", "offset 9 (line 2)"),
        ([entry for entry in VOCABULARY if entry != "[MASK]"], "lacks [MASK]"),
        (["[UNK]", "[PAD]", *VOCABULARY[2:]], "has [PAD] on line 2"),
        ([*VOCABULARY, "", "more"], "empty lines: 16"),
        ([*VOCABULARY, "dig"], "'dig' on lines 7 and 16"),
        (None, "tokenizer.path="),
    ],
)
def test_what_is_no_vocabulary_is_refused(tmp_path: Path, content: bytes | list[str] | None, message: str) -> None:
    path = tmp_path / "vocab.txt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        write_vocabulary(path, content)
    refused = refusal(tmp_path, source="file", path=str(path))
    assert message in refused
    assert "tokenizer.path" in refused


def model_files(tmp_path: Path, lowercase: bool = True) -> dict[str, bytes]:
    """The files of a fast tokenizer, as a model on the Hub has them."""
    path = write_vocabulary(tmp_path / "source/vocab.txt", VOCABULARY)
    make_tokenizer(params(source="file", path=str(path), lowercase=lowercase), 512, tmp_path, tmp_path / "model")
    return {name: (tmp_path / "model" / name).read_bytes() for name in FILES}


def folder_of(path: Path, files: dict[str, bytes]) -> Path:
    path.mkdir()
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path


@pytest.mark.parametrize("kept", [["tokenizer.json"], ["vocab.txt", "tokenizer_config.json"]])
def test_a_fast_tokenizer_comes_back_as_it_was(tmp_path: Path, kept: list[str]) -> None:
    files = model_files(tmp_path, lowercase=False)
    folder = folder_of(tmp_path / "some", {name: files[name] for name in kept})
    make_tokenizer(params(source="hub", repository=str(folder)), 512, tmp_path, tmp_path / "out")
    assert {name: (tmp_path / "out" / name).read_bytes() for name in FILES} == files


def test_a_model_that_was_read_once_is_read_again_without_a_connection(
    tmp_path: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    files = model_files(tmp_path)
    commit = hub.store.add_files(hub.store.create("model", "user/tiny"), files).oid
    wanted = params(source="hub", repository="user/tiny", revision=commit)
    make_tokenizer(wanted, 512, tmp_path, tmp_path / "out")
    assert "Check tokenizer.revision" in refusal(tmp_path, source="hub", repository="user/tiny", revision="nowhere")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    make_tokenizer(wanted, 512, tmp_path, tmp_path / "again")
    assert (tmp_path / "again/tokenizer.json").read_bytes() == files["tokenizer.json"]
    assert "HF_HUB_OFFLINE is set" in refusal(tmp_path, source="hub", repository="user/other")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"spiece.model": b"x", "tokenizer_config.json": b"{}"}, "a slow tokenizer"),
        ({"tokenizer_config.json": b'{"auto_map": {"AutoTokenizer": ["own.Own", null]}}'}, "its own Python code"),
        (None, "tokenizer.repository is not set"),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_refused(
    tmp_path: Path, files: dict[str, bytes] | None, message: str
) -> None:
    if files and len(files) == 1:
        files = model_files(tmp_path) | files
    repository = str(folder_of(tmp_path / "own", files)) if files else None
    assert message in refusal(tmp_path, source="hub", repository=repository)


def test_without_a_corpus_the_stage_to_run_is_named(tmp_path: Path) -> None:
    assert "run the corpus stage" in refusal(tmp_path)
