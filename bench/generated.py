"""Generated texts and questions from the project's demo world, with realistic lengths.

A document of the world has about 50 tokens. Articles of WikiText and contexts of SQuAD are longer, and the gain from
dropping padding depends on lengths, so several documents are joined.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ipu_model.core.files import new_folder, write_text
from tasks.corpus import world

SEED = 1
ARTICLES, DOCUMENTS_PER_ARTICLE = 1000, 8
QUESTIONS: dict[world.Split, int] = {"train": 6000, "dev": 900}
MOST_DOCUMENTS_PER_CONTEXT = 5
"""Contexts cycle through 1, 2, ... 5 documents: about 180 tokens on average with the question, the mean of SQuAD."""


def write_generated(folder: Path) -> None:
    """Write corpus/articles.jsonl, squad/train.json and squad/dev.json atomically."""
    with new_folder(folder) as partial:
        articles = []
        for number in range(ARTICLES):
            made = world.make_documents(SEED, "corpus", DOCUMENTS_PER_ARTICLE, number * DOCUMENTS_PER_ARTICLE)
            articles.append(json.dumps({"text": "\n".join(document.text for document in made)}))
        write_text(partial / "corpus" / "articles.jsonl", "\n".join(articles) + "\n")
        for split, count in QUESTIONS.items():
            write_text(partial / "squad" / f"{split}.json", json.dumps(_squad(split, count)))


def _squad(split: world.Split, count: int) -> dict[str, Any]:
    entries = []
    for number, question in enumerate(world.make_questions(SEED, split, count)):
        before = world.make_documents(SEED + 1, split, number % MOST_DOCUMENTS_PER_CONTEXT, number)
        prefix = "".join(document.text + " " for document in before)
        answer = {"text": question.answer, "answer_start": len(prefix) + question.answer_start}
        qas = [{"id": question.id, "question": question.question, "answers": [answer]}]
        paragraph = {"context": prefix + question.context, "qas": qas}
        entries.append({"title": question.title, "paragraphs": [paragraph]})
    return {"version": "1.1", "data": entries}
