"""Near-duplicates, held against sets of strings compared one by one."""

import json
import random
import tracemalloc
import unicodedata

import pytest

from tasks.records.minhash import MAX_MISSED, PERMUTATIONS, choose_bands, extract_letters, make_shingles
from tasks.stage.errors import InputError
from tasks.validation import near_duplicates as searching
from tasks.validation.near_duplicates import NearDuplicateIndex, find_near_duplicates
from tests.places import SHARED
from tests.tasks.pretraining.row_inputs import write_corpus


def strings_of(text, size=5):
    kept = "".join(sign if sign.isalnum() else " " for sign in unicodedata.normalize("NFKC", text).casefold())
    letters = " " + " ".join(kept.split())
    return {letters[i : i + size] for i in range(max(1, len(letters) - size + 1))} if letters.strip() else set()


def share(first, second):
    return len(first & second) / len(first | second) if first | second else 0.0


def find_pairs(dev, train, threshold):
    matches = NearDuplicateIndex(dev, threshold).matches(make_shingles(extract_letters(train)))
    return {(match.text, match.other): match.similarity for match in matches}


CHANGES = [
    lambda words, chance: words,
    lambda words, chance: [*words[:-1], "otherwise"],
    lambda words, chance: [word.upper() for word in words],
    lambda words, chance: [word + chance.choice([",", "!", " -"]) for word in words],
    lambda words, chance: words[len(words) // 8 :],
    lambda words, chance: [*words[2:], *words[:2]],
]


def contexts(text):
    return [part["context"] for article in json.loads(text)["data"] for part in article["paragraphs"]]


def sentences(text):
    return [line.rpartition("\t")[0] for line in text.splitlines()]


def words(text):
    return [" ".join(line.split("\t")[0] for line in block.splitlines()) for block in text.strip().split("\n\n")]


@pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="real input is not part of the project")
@pytest.mark.parametrize("threshold", [0.6, 0.8])
@pytest.mark.parametrize(
    ("read", "files"),
    [
        (contexts, "squad/new-wiki-{}.json"),
        (sentences, "sst2/{}.tsv"),
        (words, "ner/wnut17-{}.conll"),
    ],
)
def test_pairs_are_those_that_comparing_all_real_texts_gives(read, files, threshold):
    train, dev = (
        [*dict.fromkeys(read((SHARED / "data" / files.format(split)).read_text(encoding="utf-8")))]
        for split in ("train", "dev")
    )
    chance, dev = random.Random(1), dev[:90]
    train = [*train, *(" ".join(chance.choice(CHANGES)(text.split(), chance)) for text in dev)][-240:]
    sets = [[strings_of(text) for text in texts] for texts in (dev, train)]
    pairs = {(i, j): share(left, right) for i, left in enumerate(sets[0]) for j, right in enumerate(sets[1])}
    expected = {pair: value for pair, value in pairs.items() if value >= threshold}
    assert len(expected) > 60
    assert find_pairs(dev, train, threshold) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "other", "equal"),
    [
        ("cool ?", "Cool", True),
        ("ab", "a b", False),
        ("a", "b", False),
        ("ﬁne", "fine", True),
        (":-)", ":-)", True),
        (":-)", ":-(", False),
        ("东京是日本的首都", "东京是日本的首都。", True),
        ("", "", False),
        (" \n", "a", False),
    ],
)
def test_texts_of_a_few_letters_or_none(text, other, equal):
    assert find_pairs([text], [other], 0.8) == ({(0, 0): 1.0} if equal else {})


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.95, 1.0])
def test_the_bands_miss_at_most_one_in_a_thousand_at_the_threshold(threshold):
    bands, rows = choose_bands(threshold)
    assert 2 <= bands <= PERMUTATIONS / rows
    assert (1 - threshold**rows) ** bands <= MAX_MISSED


FILLER = [" ".join(random.Random(seed).choices([f"w{i}x" for i in range(3000)], k=400)) for seed in range(6)]
CONTEXT = (
    "The Derwent rises in the northern hills, turns east below the old mill of Calder, and ends after ninety miles in "
    "a lake that three streams leave again; boats carried lead and wool on it until the railway came in 1867."
)


def report_on(splits, corpus=None):
    development = [split for split in splits if split != "train"]
    return find_near_duplicates(lambda split: iter([splits[split]]), "train", development, corpus, 0.8, "example")


def test_a_context_is_found_within_a_document_whatever_stands_around_it(tmp_path):
    middle = f"{FILLER[1][:700]} {CONTEXT.replace('ninety', 'a hundred')} {FILLER[1][700:]}"
    edges = [f"{CONTEXT}\n{FILLER[2]}", f"{FILLER[3]}\n{CONTEXT}"]
    other = CONTEXT.replace("Derwent", "Tamar").replace("1867", "1859").upper()
    dev = [CONTEXT, "an altogether different text about nothing that any document has", other]
    for number, document in enumerate([middle, *edges]):
        corpus = write_corpus(tmp_path / str(number), [*FILLER[:3], document, *FILLER[3:]])
        [_, text] = report_on({"train": FILLER, "dev": dev}, corpus).sources
        assert [(pair.example, pair.other) for pair in text.pairs] == [(0, "document 3"), (2, "document 3")]
        assert (text.pairs[0].similarity > 0.99) == (number > 0)
        assert text.compared == 7


def test_a_context_is_found_though_a_sentence_was_cut_from_it_or_its_ends_were_changed(tmp_path):
    parts = CONTEXT.split()
    changed = [parts[5:], parts[:-5], [*parts[:14], *parts[18:]], ["Here", *parts[1:-1], "then."]]
    for number, kept in enumerate(changed):
        text = " ".join(kept)
        assert share(strings_of(text), strings_of(CONTEXT)) >= 0.8
        corpus = write_corpus(tmp_path / str(number), [FILLER[0], f"{FILLER[1]} {text} {FILLER[2]}"])
        [pair] = report_on({"train": [], "dev": [CONTEXT]}, corpus).sources[1].pairs
        assert pair.similarity >= 0.8
    corpus = write_corpus(tmp_path / "half", [FILLER[0], FILLER[1] + CONTEXT[: len(CONTEXT) // 2] + FILLER[2]])
    assert report_on({"train": FILLER, "dev": [CONTEXT]}, corpus).sources[1].pairs == ()


@pytest.mark.soak
def test_a_text_of_many_megabytes_is_compared_by_its_beginning_in_little_memory():
    text = "".join(random.Random(0).choices("abcdefgh ", k=8 << 20))
    tracemalloc.start()
    try:
        report = report_on({"train": [text[: 4 << 20], "short"], "dev": [text, "another text"]})
        assert tracemalloc.get_traced_memory()[1] < 250 << 20
    finally:
        tracemalloc.stop()
    assert [pair.example for pair in report.sources[0].pairs] == [0]


def test_texts_too_short_for_a_document_are_counted_and_not_looked_for(tmp_path):
    with pytest.raises(InputError, match="run the corpus stage"):
        report_on({"train": ["a"], "dev": ["a"]}, tmp_path)
    corpus = write_corpus(tmp_path / "corpus", ["fine film " + FILLER[0], FILLER[1]])
    [train, text] = report_on({"train": ["Fine film!"], "dev": ["fine film", "fine film", CONTEXT]}, corpus).sources
    assert [pair.example for pair in train.pairs] == [0, 1]
    assert (train.passed_over, text.passed_over, text.pairs) == (0, 2, ())
    assert [source.pairs for source in report_on({"train": ["a"], "dev": [""]}, corpus).sources] == [(), ()]


def test_long_documents_are_looked_through_in_parts_and_what_stands_across_them_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(searching, "BATCH_CHARACTERS", 1000)
    for before in range(600, 1100, 50):
        text = " ".join(FILLER)[:before] + " " + CONTEXT + " " + " ".join(FILLER)[before:]
        corpus = write_corpus(tmp_path / str(before), [text, FILLER[0]])
        [pair] = report_on({"train": [], "dev": [CONTEXT]}, corpus).sources[1].pairs
        assert pair.similarity > 0.97


def test_examples_with_equal_texts_all_count_and_the_nearest_other_text_is_named():
    train = ["nothing like it at all", CONTEXT.replace("lead", "salt"), CONTEXT, CONTEXT]
    [source] = report_on({"train": train, "dev_a": [CONTEXT, "unlike"], "dev_b": ["unlike", CONTEXT]}).sources
    assert [(pair.split, pair.example, pair.other, pair.similarity) for pair in source.pairs] == [
        ("dev_a", 0, "training example 2", 1.0),
        ("dev_b", 1, "training example 2", 1.0),
    ]
    assert len(source.shown) == 1
    assert source.examples("dev_b") == [1]
