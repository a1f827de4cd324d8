"""The invented world: what it promises to a user who trains and tests on it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

from tasks.corpus import world
from tasks.corpus.world import ENDINGS, RELATIONS
from tests.places import ROOT

NAME = re.compile(r"\b[A-Z][a-z]+\b")


def names_in(texts: Iterator[str]) -> set[str]:
    known = {name for kind in ENDINGS for split in world.SPLITS for name in world.list_names(kind, split)}
    return {word for text in texts for word in NAME.findall(text) if word in known}


def texts_of(question: world.DemoQuestion) -> str:
    return f"{question.title} {question.context} {question.question} {question.answer}"


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


def test_this_version_of_the_world_is_the_one_that_was_published() -> None:
    """A change of wording or of draws changes every corpus made from a seed: it must be meant."""
    code = (
        "import hashlib; from tasks.corpus import world\n"
        "documents = ''.join(document.text for document in world.make_documents(1, 'corpus', 100))\n"
        "asked = world.make_questions(1, 'train', 300)\n"
        "questions = ''.join(f'{q.title} {q.context} {q.question} {q.answer}' for q in asked)\n"
        "print(*(hashlib.sha256(text.encode()).hexdigest()[:16] for text in (documents, questions)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    digests = subprocess.check_output([sys.executable, "-c", code], env=environment, cwd=ROOT, text=True)
    assert digests == "5bc7eb517cfcb892 93ecfb02a7b12e9f\n", "in every process"


def test_an_answer_stands_in_its_context_exactly_once_where_it_says() -> None:
    for question in world.make_questions(2, "dev", 1000):
        stop = question.answer_start + len(question.answer)
        assert question.context[question.answer_start : stop] == question.answer
        assert len(re.findall(rf"\b{question.answer}\b", question.context)) == 1
        assert question.title in question.question
    assert len({question.id for question in world.make_questions(2, "dev", 1000)}) == 1000


def test_every_word_of_the_questions_occurs_in_the_corpus() -> None:
    """Else the vocabulary trained on the corpus would cut them to letters."""
    corpus = {word for document in world.make_documents(1, "corpus", 3000) for word in document.text.lower().split()}
    corpus = {word.strip(".,?") for word in corpus}
    asked = " ".join(question.format("") for relation in RELATIONS for question in relation.questions)
    assert {word.strip(".,?") for word in asked.lower().split()} - {""} <= corpus
