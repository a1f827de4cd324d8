"""Rules that remove documents: each on text made for it, counted, shown, and the same on every run."""

from __future__ import annotations

import importlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_model.core.files import read_json
from tasks.corpus import duplicates, quality
from tasks.corpus.corpus import make_corpus
from tasks.corpus.documents import Document
from tasks.corpus.duplicates import make_keys
from tasks.params.schema import CorpusParams
from tasks.params.sections import QualityParams
from tasks.stage.errors import InputError
from tests.tasks.corpus.made_corpus import documents, write

ENGLISH = (
    "The river flows through the old town and turns to the south below the bridge, where the people of the valley have "
    "built their mills. In winter the water is high, and the road to the mountains is closed for many weeks. Merchants "
    "that come with wool and salt then wait at the inn until the snow is gone, and some of them stay for good."
)
GERMAN = (
    "Der Fluss fließt durch die alte Stadt und wendet sich unterhalb der Brücke nach Süden, wo die Leute des Tals ihre "
    "Mühlen gebaut haben. Im Winter steht das Wasser hoch, und die Straße in die Berge ist viele Wochen lang gesperrt."
)
needs_langid = pytest.mark.skipif(importlib.util.find_spec("py3langid") is None, reason="needs the extra quality")
needs_datatrove = pytest.mark.skipif(importlib.util.find_spec("datatrove") is None, reason="needs the extra quality")


def words(count: int, seed: int = 0) -> str:
    """Distinct words of one sentence after the other, none of which repeats."""
    draw = random.Random(seed)
    made = ("".join(draw.choice("abcdefghiklmnoprstuvw") for _ in range(draw.randint(3, 9))) for _ in range(count))
    return " ".join(made) + "."


def make(folder: Path, texts: list[str], **rules: Any) -> tuple[list[str], dict[str, Any]]:
    """The ids of the documents that stay, and reading.json."""
    records = (json.dumps({"document_id": f"d{number}", "text": text}) for number, text in enumerate(texts))
    path = write(folder / "text.jsonl", "\n".join(records) + "\n")
    make_corpus(CorpusParams(source="files", path=str(path), quality=QualityParams(**rules)), folder / "out")
    return [name for name, _, _ in documents(folder / "out")], read_json(folder / "out/reading.json")


def removed(reading: dict[str, Any]) -> dict[str, int]:
    return {name.removeprefix("removed, "): n for name, n in reading["numbers"].items() if name.startswith("removed, ")}


@needs_langid
def test_other_languages_are_removed_and_counted_each(tmp_path):
    texts = [ENGLISH, GERMAN, words(3), GERMAN + GERMAN]
    kept, reading = make(tmp_path, texts, languages=["en"], min_language_probability=0.9)
    assert kept == ["d0"]
    assert removed(reading)["language: de"] == 2
    assert sum(removed(reading).values()) == 3
    assert reading["examples"]["removed, language: de"].startswith('d1: "Der Fluss')
    assert make(tmp_path, texts, languages=["de"])[0] == ["d1", "d3"]


@needs_langid
def test_an_unknown_language_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"contains english\. Known languages: .*\ben, eo\b"):
        quality.make_rules(QualityParams(languages=["english", "de"]))


@needs_datatrove
@pytest.mark.parametrize(
    ("rule", "text", "name"),
    [
        ({"min_words": 50}, words(49), "quality: short doc"),
        ({"max_words": 50}, words(51), "quality: long doc"),
        ({"min_words": 1}, "!!! ... ???", "quality: short doc"),
        ({"stop_words": ["the", "be", "to"]}, words(60), "quality: enough stop words"),
        ({"gopher_quality": True}, "a b c d e f g h", "quality: below avg threshold"),
        ({"gopher_quality": True}, "# " * 3 + words(10), "quality: too many hashes"),
        ({"gopher_quality": True}, "\n".join(f"- {words(9, n)}" for n in range(9)), "quality: too many bullets"),
        (
            {"gopher_quality": True},
            "\n".join(f"{words(20, n)[:-1]}…" for n in range(9)),
            "quality: too many end ellipsis",
        ),
        ({"gopher_quality": True}, "1234 5678 91011 12131 " * 4 + words(6), "quality: below alpha threshold"),
        ({"gopher_repetition": True}, "\n".join([words(30)] + ["buy now"] * 9), "repetition: dup line frac"),
        ({"gopher_repetition": True}, words(30) + " so on" * 20, "repetition: top 2 gram"),
        ({"gopher_repetition": True}, f"{words(16, 1)} " * 2 + words(40), "repetition: duplicated 5 n grams"),
    ],
)
def test_each_rule_of_gopher_removes_the_text_made_for_it_and_no_plain_text(rule, text, name):
    find_rule = quality.make_rules(QualityParams(**rule))
    assert find_rule(text) == name
    assert find_rule(ENGLISH if "max_words" not in rule else words(50)) == ""


@needs_datatrove
def test_repetition_alone_counts_no_words():
    signs = " ".join(chr(0x2200 + number) for number in range(120))
    assert quality.make_rules(QualityParams(gopher_repetition=True))(signs) == ""
    assert quality.make_rules(QualityParams(gopher_repetition=True, min_words=1))(words(1)) == "repetition: top 2 gram"


def test_a_missing_package_is_named_with_what_to_do(monkeypatch):
    for package in ("py3langid", "datatrove"):
        monkeypatch.setitem(sys.modules, package, None)
    for rules, name in (
        ({"languages": ["en"]}, "corpus.quality.languages: py3langid not installed"),
        ({"gopher_repetition": True}, "corpus.quality.gopher_repetition: datatrove not installed"),
    ):
        with pytest.raises(InputError, match=rf"{name}\. Run pip install 'podium\[quality\]'"):
            quality.make_rules(QualityParams(**rules))


def test_only_exact_copies_are_removed_as_such(tmp_path):
    texts = [ENGLISH, GERMAN, ENGLISH, ENGLISH + " ", ENGLISH.upper(), GERMAN]
    kept, reading = make(tmp_path, texts, exact_duplicates=True)
    assert kept == ["d0", "d1", "d4"]  # white space at the end is not part of a text
    assert removed(reading) == {"duplicates: exact": 3}
    example = reading["examples"]["removed, duplicates: exact"].split(" repeats ")
    assert example == [quality.quote(Document("d2", "", ENGLISH)), quality.quote(Document("d0", "", ENGLISH))]


def test_near_copies_are_removed_wherever_they_stand(tmp_path):
    filler = [words(60, seed) for seed in range(1, 500)]
    changed = ENGLISH.replace("winter", "summer").upper()
    shuffled = " ".join(random.Random(7).sample(ENGLISH.split(), 55))
    texts = [ENGLISH, *filler, changed, words(60, 1) + " One more.", ENGLISH, shuffled, "!!!", "...", "!!!"]
    others = ["d503", "d504", "d505"]
    kept, reading = make(tmp_path, texts, near_duplicates=0.8, exact_duplicates=True)
    assert kept == [*(f"d{number}" for number in range(500)), *others]
    assert removed(reading) == {"duplicates: exact": 2, "duplicates: near": 2}
    strict, _ = make(tmp_path, texts, near_duplicates=0.99)
    assert strict == [*(f"d{number}" for number in range(502)), *others]


def test_a_long_document_has_the_signature_of_all_its_pieces(monkeypatch):
    long = words(4000)
    whole = make_keys(["a", long, "b"], 0.8)
    monkeypatch.setattr(duplicates, "PIECE_CHARACTERS", 5000)
    parts = make_keys(["a", long, "b"], 0.8)
    assert (whole.signatures == parts.signatures).mean() > 0.98  # the shingles across borders are missing
    assert np.array_equal(whole.exact, parts.exact)


def test_rules_that_leave_nothing_are_refused_and_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.corpus.quality.make_rules", lambda params: lambda text: "language: xx")
    with pytest.raises(InputError, match=r"leave no document \(2 removed, language: xx\)"):
        make(tmp_path, [ENGLISH, GERMAN], languages=["en"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.jsonl"]
