"""The invented world: what it promises to a user who trains and tests on it."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from tasks.corpus import world
from tasks.corpus.world import ENDINGS, PAIRED_KINDS, RELATIONS, REPEATED_FACTS
from tests.places import ROOT

NAME = re.compile(r"\b[A-Z][a-z]+\b")
DIGEST = """
import hashlib
from tasks.corpus import world
text = "".join(map(repr, [*world.make_documents(7, "corpus", 200), *world.make_questions(7, "dev", 200)]))
print(hashlib.sha256(text.encode()).hexdigest())
"""


def all_names() -> set[str]:
    return {name for kind in ENDINGS for split in world.SPLITS for name in world.list_names(kind, split)}


def names_in(texts: Iterator[str]) -> set[str]:
    known = all_names()
    return {word for text in texts for word in NAME.findall(text) if word in known}


def texts_of(question: world.DemoQuestion) -> str:
    return f"{question.title} {question.context} {question.question} {question.answer}"


def test_a_name_belongs_to_one_split_and_one_kind() -> None:
    owned = [[name for kind in ENDINGS for name in world.list_names(kind, split)] for split in world.SPLITS]
    names = [name for some in owned for name in some]
    assert len(names) == len(set(names))
    assert [len(some) / len(names) for some in owned] == pytest.approx([0.70, 0.15, 0.15], abs=0.01)


def test_names_of_a_split_occur_in_no_other_whatever_the_seeds() -> None:
    corpus = names_in(document.text for document in world.make_documents(1, "corpus", 3000))
    train = names_in(texts_of(question) for question in world.make_questions(1, "train", 1500))
    dev = names_in(texts_of(question) for question in world.make_questions(9, "dev", 1500))
    assert min(len(corpus), len(train), len(dev)) > 1000
    assert len(corpus | train | dev) == len(corpus) + len(train) + len(dev)


def test_a_document_does_not_depend_on_how_many_are_made_or_in_which_order() -> None:
    many = list(world.make_documents(3, "corpus", 40))
    assert list(world.make_documents(3, "corpus", 10, start=25)) == many[25:35]
    assert next(world.make_documents(3, "corpus", 1, 39)) == many[39]
    questions = list(world.make_questions(3, "dev", 40))
    assert list(world.make_questions(3, "dev", 11)) == questions[:11]


def test_the_world_is_the_same_in_every_process() -> None:
    here = "".join(map(repr, [*world.make_documents(7, "corpus", 200), *world.make_questions(7, "dev", 200)]))
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    there = subprocess.check_output([sys.executable, "-c", DIGEST], env=environment, cwd=ROOT, text=True)
    assert there.strip() == hashlib.sha256(here.encode()).hexdigest()


def test_this_version_of_the_world_is_the_one_that_was_published() -> None:
    """A change of wording or of draws changes every corpus made from a seed: it must be meant."""
    documents = "".join(document.text for document in world.make_documents(1, "corpus", 100))
    questions = "".join(map(texts_of, world.make_questions(1, "train", 300)))
    found = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in (documents, questions)]
    assert found == ["5bc7eb517cfcb892", "93ecfb02a7b12e9f"]


def test_each_fact_is_stated_once_or_twice_and_two_of_four_are_of_one_kind() -> None:
    for document in world.make_documents(5, "corpus", 500):
        times = [len(re.findall(rf"\b{fact.value}\b", document.text)) for fact in document.facts]
        assert times == [2, 2, 1, 1]
        assert len(re.findall(rf"\b{document.title}\b", document.text)) == 6, "once in each statement"
        [(kind, count)] = Counter(fact.relation.kind for fact in document.facts).most_common(1)
        assert kind in PAIRED_KINDS
        assert count == 2
        assert len({fact.value for fact in document.facts}) == 4


def test_the_kind_of_a_question_alone_leaves_a_wrong_answer_in_a_good_share_of_contexts() -> None:
    """With two facts of four of one kind and both said-once facts asked alike, half of all questions have one."""
    rivals = total = 0
    for index in range(2000):
        facts = next(world.make_documents(4, "dev", 1, index)).facts
        for fact in facts[REPEATED_FACTS:]:
            rivals += sum(other.relation.kind == fact.relation.kind for other in facts) - 1
            total += 1
    assert 0.45 < rivals / total < 0.55


def test_an_answer_stands_in_its_context_exactly_once_where_it_says() -> None:
    for question in world.make_questions(2, "dev", 1000):
        stop = question.answer_start + len(question.answer)
        assert question.context[question.answer_start : stop] == question.answer
        assert len(re.findall(rf"\b{question.answer}\b", question.context)) == 1
        assert question.title in question.question


def test_question_ids_are_unique_and_some_contexts_have_two_questions() -> None:
    questions = list(world.make_questions(2, "train", 1000))
    assert len({question.id for question in questions}) == 1000
    contexts = len({question.context for question in questions})
    assert 700 < contexts < 850  # 1.3 questions on each


def test_every_word_of_the_questions_occurs_in_the_corpus() -> None:
    """Else the vocabulary trained on the corpus would cut them to letters."""
    corpus = {word for document in world.make_documents(1, "corpus", 3000) for word in document.text.lower().split()}
    corpus = {word.strip(".,?") for word in corpus}
    asked = " ".join(question.format("") for relation in RELATIONS for question in relation.questions)
    assert {word.strip(".,?") for word in asked.lower().split()} - {""} <= corpus
