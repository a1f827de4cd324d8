"""Near-duplicates, held against sets of strings compared one by one."""

from __future__ import annotations

import json
import random
import tracemalloc
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.records.duplicate_report import NearDuplicateReport
from tasks.records.minhash import MAX_MISSED, PERMUTATIONS, choose_bands, extract_letters, make_shingles
from tasks.stage.errors import InputError
from tasks.validation import near_duplicates as searching
from tasks.validation.near_duplicates import NearDuplicateIndex, find_near_duplicates
from tests.places import ROOT

DATA = ROOT.parent / "shared/data"


def plain(text: str) -> str:
    kept = (sign if sign.isalnum() else " " for sign in unicodedata.normalize("NFKC", text).casefold())
    return " " + " ".join("".join(kept).split())


def strings_of(text: str, size: int = 5) -> set[str]:
    letters = plain(text)
    return {letters[i : i + size] for i in range(max(1, len(letters) - size + 1))} if letters.strip() else set()


def share(first: set[str], second: set[str]) -> float:
    return len(first & second) / len(first | second) if first | second else 0.0


def found_by_index(dev: list[str], train: list[str], threshold: float) -> dict[tuple[int, int], float]:
    matches = NearDuplicateIndex(dev, threshold).matches(make_shingles(extract_letters(train)))
    return {(match.text, match.other): match.similarity for match in matches}


def of_questions(name: str) -> list[str]:
    document = json.loads((DATA / name).read_text(encoding="utf-8"))
    return [paragraph["context"] for article in document["data"] for paragraph in article["paragraphs"]]


def of_lines(name: str) -> list[str]:
    return [line.rpartition("\t")[0] for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def of_sentences(name: str) -> list[str]:
    blocks = (DATA / name).read_text(encoding="utf-8").strip().split("\n\n")
    return [" ".join(line.split("\t")[0] for line in block.splitlines()) for block in blocks]


CHANGES: dict[str, Callable[[list[str], random.Random], list[str]]] = {
    "nothing": lambda words, chance: words,
    "one word": lambda words, chance: [*words[:-1], "otherwise"],
    "case": lambda words, chance: [word.upper() for word in words],
    "punctuation": lambda words, chance: [word + chance.choice([",", "!", " -"]) for word in words],
    "a cut": lambda words, chance: words[len(words) // 8 :],
    "two words swapped": lambda words, chance: [*words[2:], *words[:2]],
}


def planted(texts: list[str], seed: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(CHANGES[chance.choice(sorted(CHANGES))](text.split(), chance)) for text in texts]


@pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is missing")
@pytest.mark.parametrize("threshold", [0.6, 0.8])
@pytest.mark.parametrize(
    ("train", "dev"),
    [
        (lambda: of_questions("squad/new-wiki-train.json"), lambda: of_questions("squad/new-wiki-dev.json")),
        (lambda: of_lines("sst2/train.tsv"), lambda: of_lines("sst2/dev.tsv")),
        (lambda: of_sentences("ner/wnut17-train.conll"), lambda: of_sentences("ner/wnut17-dev.conll")),
    ],
    ids=["contexts", "sentences", "words"],
)
def test_what_is_found_is_what_comparing_all_pairs_of_real_texts_finds(train, dev, threshold) -> None:
    asked = list(dict.fromkeys(dev()))[:90]
    others = [*dict.fromkeys(train()), *planted(asked, seed=1)][-240:]
    sets = [[strings_of(text) for text in texts] for texts in (asked, others)]
    pairs = {(i, j): share(one, other) for i, one in enumerate(sets[0]) for j, other in enumerate(sets[1])}
    wanted = {pair: value for pair, value in pairs.items() if value >= threshold}
    found = found_by_index(asked, others, threshold)
    assert len(wanted) > 60
    assert found == pytest.approx(wanted)  # no false pair, and of 1,000 pairs one may be missed


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("cool ?", "Cool", True),
        ("a b", "A  b.", True),
        ("ab", "a b", False),
        ("a", "b", False),
        ("ﬁne", "fine", True),
        (":-)", ":-)", True),
        (":-)", ":-(", False),
        ("东京是日本的首都", "东京是日本的首都。", True),
        ("", "", False),
        ("", "a", False),
        (" \n", "", False),
    ],
)
def test_texts_of_a_few_letters_or_none(one: str, other: str, equal: bool) -> None:
    assert found_by_index([one], [other], 0.8) == ({(0, 0): 1.0} if equal else {})


@pytest.mark.parametrize("threshold", [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0])
def test_the_bands_miss_at_most_one_in_a_thousand_at_the_threshold(threshold: float) -> None:
    bands, rows = choose_bands(threshold)
    assert bands >= 2
    assert bands * rows <= PERMUTATIONS
    assert (1 - threshold**rows) ** bands <= MAX_MISSED


def corpus_of(folder: Path, documents: list[str]) -> Path:
    folder.mkdir(parents=True)
    half = len(documents) // 2
    for number, some in enumerate((documents[:half], documents[half:])):
        rows = [{"document_id": f"{number}-{i}", "title": "", "text": text} for i, text in enumerate(some)]
        schema = pa.schema([(name, pa.string()) for name in ("document_id", "title", "text")])
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / f"part-{number:05}.parquet")
    return folder


FILLER = [" ".join(random.Random(seed).choices([f"w{i}x" for i in range(3000)], k=400)) for seed in range(6)]
CONTEXT = (
    "The Derwent rises in the northern hills, turns east below the old mill of Calder, and ends after ninety miles in "
    "a lake that three streams leave again; boats carried lead and wool on it until the railway came in 1867."
)


def report_on(splits: dict[str, list[str]], corpus: Path | None = None, threshold: float = 0.8) -> NearDuplicateReport:
    development = [split for split in splits if split != "train"]
    return find_near_duplicates(lambda split: iter([splits[split]]), "train", development, corpus, threshold, "example")


def test_a_context_is_found_within_a_document_whatever_stands_around_it(tmp_path: Path) -> None:
    middle = f"{FILLER[1][:700]} {CONTEXT.replace('ninety', 'a hundred')} {FILLER[1][700:]}"
    edges = [f"{CONTEXT}\n{FILLER[2]}", f"{FILLER[3]}\n{CONTEXT}"]
    other = CONTEXT.replace("Derwent", "Tamar").replace("1867", "1859").upper()
    dev = [CONTEXT, "an altogether different text about nothing that any document has", other]
    for number, document in enumerate([middle, *edges]):
        corpus = corpus_of(tmp_path / str(number), [*FILLER[:3], document, *FILLER[3:]])
        [_, text] = report_on({"train": FILLER, "dev": dev}, corpus).sources
        assert [pair.example for pair in text.pairs] == [0, 2]
        assert {pair.other for pair in text.pairs} == {"document 1-0"}
        assert (text.pairs[0].similarity > 0.99) == (number > 0)
        assert text.compared == 7


def test_a_context_is_found_though_a_sentence_was_cut_from_it_or_its_ends_were_changed(tmp_path: Path) -> None:
    words = CONTEXT.split()
    changed = [words[5:], words[:-5], [*words[:14], *words[18:]], ["Here", *words[1:-1], "then."]]
    for number, some in enumerate(changed):
        text = " ".join(some)
        assert share(strings_of(text), strings_of(CONTEXT)) >= 0.8
        corpus = corpus_of(tmp_path / str(number), [FILLER[0], f"{FILLER[1]} {text} {FILLER[2]}"])
        [pair] = report_on({"train": [], "dev": [CONTEXT]}, corpus).sources[1].pairs
        assert pair.similarity >= 0.8
    corpus = corpus_of(tmp_path / "half", [FILLER[0], FILLER[1] + CONTEXT[: len(CONTEXT) // 2] + FILLER[2]])
    assert report_on({"train": FILLER, "dev": [CONTEXT]}, corpus).sources[1].pairs == ()


@pytest.mark.soak
def test_a_text_of_many_megabytes_is_compared_by_its_beginning_in_little_memory() -> None:
    text = "".join(random.Random(0).choices("abcdefgh ", k=8 << 20))
    tracemalloc.start()
    try:
        found = report_on({"train": [text[: 4 << 20], "short"], "dev": [text, "another text"]})
        assert tracemalloc.get_traced_memory()[1] < 250 << 20
    finally:
        tracemalloc.stop()
    assert [pair.example for pair in found.sources[0].pairs] == [0]


def test_texts_too_short_for_a_document_are_counted_and_not_looked_for(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "corpus", ["fine film " + FILLER[0], FILLER[1]])
    [train, text] = report_on({"train": ["Fine film!"], "dev": ["fine film", "fine film", CONTEXT]}, corpus).sources
    assert [pair.example for pair in train.pairs] == [0, 1]
    assert (train.passed_over, text.passed_over, text.pairs) == (0, 2, ())


def test_long_documents_are_looked_through_in_parts_and_what_stands_across_them_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "BATCH_CHARACTERS", 1000)
    for before in range(600, 1100, 50):
        text = " ".join(FILLER)[:before] + " " + CONTEXT + " " + " ".join(FILLER)[before:]
        corpus = corpus_of(tmp_path / str(before), [text, FILLER[0]])
        [pair] = report_on({"train": [], "dev": [CONTEXT]}, corpus).sources[1].pairs
        assert pair.similarity > 0.97


def test_examples_with_equal_texts_all_count_and_the_nearest_other_text_is_named() -> None:
    splits = {
        "train": ["nothing like it at all", CONTEXT.replace("lead", "salt"), CONTEXT, CONTEXT],
        "dev_a": [CONTEXT, "unlike"],
        "dev_b": ["unlike", CONTEXT],
    }
    [source] = report_on(splits).sources
    assert [(pair.split, pair.example, pair.other, pair.similarity) for pair in source.pairs] == [
        ("dev_a", 0, "training example 2", 1.0),
        ("dev_b", 1, "training example 2", 1.0),
    ]
    assert len(source.shown) == 1
    assert source.examples("dev_b") == [1]


def test_a_corpus_without_files_is_refused_and_without_texts_nothing_is_found(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run the corpus stage first"):
        report_on({"train": ["a"], "dev": ["a"]}, tmp_path)
    corpus = corpus_of(tmp_path / "corpus", FILLER)
    assert [source.pairs for source in report_on({"train": ["a"], "dev": [""]}, corpus).sources] == [(), ()]
