"""The invented world: what it promises to whoever trains and tests on it."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tasks import world
from tasks.world_text import ENDINGS, FIRST_YEAR, GOODS, LAST_YEAR, RELATIONS

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\b[A-Z][a-z]+\b")
DIGEST = """
import hashlib
from tasks import world
text = "".join(map(repr, world.documents(7, "corpus", 200))) + "".join(map(repr, world.questions(7, "dev", 200)))
print(hashlib.sha256(text.encode()).hexdigest())
"""


def all_names() -> set[str]:
    return {name for kind in ENDINGS for split in world.SPLITS for name in world.names_of(kind, split)}


def names_in(texts: Iterator[str]) -> set[str]:
    known = all_names()
    return {word for text in texts for word in NAME.findall(text) if word in known}


def texts_of(question: world.Question) -> str:
    return f"{question.title} {question.context} {question.question} {question.answer}"


def test_a_name_belongs_to_one_split_whatever_its_kind() -> None:
    owned = [{name for kind in ENDINGS for name in world.names_of(kind, split)} for split in world.SPLITS]
    total = sum(len(names) for names in owned)
    assert len(set.union(*owned)) == total
    shares = [len(names) / total for names in owned]
    assert shares == pytest.approx([0.70, 0.15, 0.15], abs=0.01)


def test_no_name_is_of_two_kinds() -> None:
    names = [name for kind in ENDINGS for split in world.SPLITS for name in world.names_of(kind, split)]
    assert len(names) == len(set(names))


def test_the_split_of_a_name_never_changes() -> None:
    # the CRC-32 of "velmora" is 0xbb54d7b3 = 3142899635, and 35 is among the corpus' 0 to 69
    assert world.split_of("Velmora") == world.split_of("VELMORA") == "corpus"
    for split in world.SPLITS:
        assert all(world.split_of(name) == split for name in islice(world.names_of("river", split), 50))


def test_names_of_a_split_occur_in_no_other_whatever_the_seeds() -> None:
    corpus = names_in(document.text for document in world.documents(1, "corpus", 3000))
    train = names_in(texts_of(question) for question in world.questions(1, "train", 1500))
    dev = names_in(texts_of(question) for question in world.questions(9, "dev", 1500))
    assert min(len(corpus), len(train), len(dev)) > 1000
    assert len(corpus | train | dev) == len(corpus) + len(train) + len(dev)


def test_a_document_does_not_depend_on_how_many_are_made_or_in_which_order() -> None:
    many = list(world.documents(3, "corpus", 40))
    assert list(world.documents(3, "corpus", 10, start=25)) == many[25:35]
    assert world.document(3, "corpus", 39) == many[39]
    questions = list(world.questions(3, "dev", 40))
    assert list(world.questions(3, "dev", 11)) == questions[:11]


def test_another_seed_tells_other_documents() -> None:
    assert list(world.documents(1, "corpus", 20)) != list(world.documents(2, "corpus", 20))


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_the_world_is_the_same_in_every_process(hash_seed: str) -> None:
    here = "".join(map(repr, world.documents(7, "corpus", 200))) + "".join(map(repr, world.questions(7, "dev", 200)))
    there = subprocess.run(
        [sys.executable, "-c", DIGEST],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == hashlib.sha256(here.encode()).hexdigest()


def test_this_version_of_the_world_is_the_one_that_was_published() -> None:
    """A change of wording or of draws changes every corpus made from a seed: it must be meant."""
    text = "".join(document.text for document in world.documents(1, "corpus", 100))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "faf93bc4e72aa59f"


def test_each_fact_is_stated_and_one_is_said_again() -> None:
    for document in world.documents(5, "corpus", 500):
        assert len(document.facts) == 4
        for fact in document.facts:
            places = re.findall(rf"\b{fact.value}\b", document.text)
            assert len(places) == 1 if fact.asked else len(places) in (1, 2)
        said_twice = [f for f in document.facts if len(re.findall(rf"\b{f.value}\b", document.text)) == 2]
        assert len(said_twice) in (1, 2)
        assert all(len(re.findall(rf"\b{fact.town}\b", document.text)) >= 2 for fact in document.facts)


def test_every_question_has_a_wrong_answer_of_the_same_kind_in_its_context() -> None:
    kinds = {kind: set(world.names_of(kind, "dev")) for kind in ENDINGS}
    kinds["good"] = set(GOODS)
    kinds["year"] = {str(year) for year in range(FIRST_YEAR, LAST_YEAR + 1)}
    for question in world.questions(2, "dev", 500):
        kind = next(name for name, values in kinds.items() if question.answer in values and name != "town")
        words = set(re.findall(r"\w+", question.context))
        assert len(words & kinds[kind]) == 2, question


def test_an_answer_stands_in_its_context_exactly_once_where_it_says() -> None:
    for question in world.questions(2, "dev", 1000):
        stop = question.answer_start + len(question.answer)
        assert question.context[question.answer_start : stop] == question.answer
        assert len(re.findall(rf"\b{question.answer}\b", question.context)) == 1
        towns = [town for town in question.title.split(" and ") if town in question.question]
        assert len(towns) == 1, "the question names one of the two towns"


def test_neither_the_first_nor_the_last_of_the_two_values_is_the_answer_by_rule() -> None:
    """Whoever guesses by place in the text is right half of the time."""
    first = total = 0
    for index in range(2000):
        document = world.document(4, "dev", index)
        places = [document.text.index(fact.value) for fact in document.facts if fact.asked]
        first, total = first + (places[0] < places[1]), total + 1
    assert 0.45 < first / total < 0.55


def test_question_ids_are_unique_and_some_contexts_have_two_questions() -> None:
    questions = list(world.questions(2, "train", 1000))
    assert len({question.id for question in questions}) == 1000
    contexts = len({question.context for question in questions})
    assert 700 < contexts < 850  # 1.3 questions on each


def test_every_relation_has_several_wordings_for_facts_and_for_questions() -> None:
    for relation in RELATIONS:
        assert len(relation.statements) >= 4
        assert len(relation.questions) >= 3
        for wording in (*relation.statements, *relation.asides):
            assert wording.count("{0}") == 1
            assert wording.count("{1}") == 1
        assert all(question.count("{0}") == 1 and "{1}" not in question for question in relation.questions)


def test_every_word_of_the_questions_occurs_in_the_corpus() -> None:
    """Else the vocabulary trained on the corpus would cut them to letters."""
    corpus = {word for document in world.documents(1, "corpus", 3000) for word in document.text.lower().split()}
    corpus = {word.strip(".,?") for word in corpus}
    asked = " ".join(question.format("") for relation in RELATIONS for question in relation.questions)
    assert {word.strip(".,?") for word in asked.lower().split()} - {""} <= corpus


def test_sentences_begin_with_a_capital_and_end_with_a_mark() -> None:
    for document in world.documents(6, "corpus", 300):
        for sentence in re.findall(r"[^.?]+[.?]", document.text):
            assert sentence.strip()[0].isupper()
        assert document.text.endswith(".")
