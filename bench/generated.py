"""Texts and questions that anybody can make, from the project's invented world, as long as real ones.

A document of the world has about 50 tokens. Articles of WikiText and contexts of SQuAD are longer, and how much a
trainer gains by dropping padding depends on lengths, so several documents are joined.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ipu_model.files import new_folder, write_text
from tasks.corpus import world

SEED = 1
ARTICLES, DOCUMENTS_PER_ARTICLE = 1000, 8
QUESTIONS: dict[world.Split, int] = {"train": 6000, "dev": 900}
MOST_DOCUMENTS_PER_CONTEXT = 5
"""A context has 1, 2, ... 5 documents in turn: about 180 tokens with the question on average, SQuAD's mean."""


def write_generated(folder: Path) -> None:
    """corpus/articles.jsonl, squad/train.json and squad/dev.json, whole or not at all."""
    with new_folder(folder) as partial:
        articles = []
        for number in range(ARTICLES):
            made = world.documents(SEED, "corpus", DOCUMENTS_PER_ARTICLE, number * DOCUMENTS_PER_ARTICLE)
            articles.append(json.dumps({"text": "\n".join(document.text for document in made)}))
        write_text(partial / "corpus" / "articles.jsonl", "\n".join(articles) + "\n")
        for split, count in QUESTIONS.items():
            write_text(partial / "squad" / f"{split}.json", json.dumps(_squad(split, count)))


def _squad(split: world.Split, count: int) -> dict[str, Any]:
    entries = []
    for number, question in enumerate(world.questions(SEED, split, count)):
        before = world.documents(SEED + 1, split, number % MOST_DOCUMENTS_PER_CONTEXT, number)
        prefix = "".join(document.text + " " for document in before)
        answer = {"text": question.answer, "answer_start": len(prefix) + question.answer_start}
        qas = [{"id": question.id, "question": question.question, "answers": [answer]}]
        paragraph = {"context": prefix + question.context, "qas": qas}
        entries.append({"title": question.title, "paragraphs": [paragraph]})
    return {"version": "1.1", "data": entries}
