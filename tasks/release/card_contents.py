"""What a model card says of the data behind a release: how they are called, and what of them the release holds."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from tasks.pages.markup import markdown_code
from tasks.release.card_training import CardFacts
from tasks.release.released_parameters import WITHHELD

OWN, OWN_TYPE = "own questions", "own-questions"
UNNAMED = "podium-model"


def title_of(facts: CardFacts) -> str:
    """The last part of the repository's name; a folder's name stays where the folder is."""
    return PurePosixPath(facts.name).name or UNNAMED


def loaded_with(facts: CardFacts) -> str:
    """How a sentence about loading the model begins."""
    return "In the folder of this file, with" if facts.name == "." else "With"


def evaluated_on(facts: CardFacts) -> tuple[str, str]:
    """Readable name and identifier of the questions the scores were measured on."""
    questions = facts.parameters["questions"]
    if questions["source"] == "demo":
        return "Podium demo questions (generated)", "podium-demo"
    if facts.data_name:
        return facts.data_name, OWN_TYPE
    if questions["source"] == "hub" and questions["dataset"] != WITHHELD:
        return str(questions["dataset"]), str(questions["dataset"])
    known = questions["source"] == "files" and questions["dev_path"] != WITHHELD
    return f"{OWN} ({questions['dev_path']})" if known else OWN, OWN_TYPE


def contents_section(facts: CardFacts) -> str:
    """What the files hold of the data: vocabulary, weights, scores and, where they are published, examples."""
    lines = [
        f"- Vocabulary: {_vocabulary(facts.parameters['tokenizer'])}",
        "- Weights: of the training data they hold what training left in them; a model can repeat what it learned by "
        "heart.",
        "- `evaluation/scores.json`: a hash of every example and how it was answered, no text. Who has the very same "
        "example can find it there.",
    ]
    if facts.examples:
        lines.append("- `evaluation/predictions.json` and `evaluation/report.html`: answers, and the data they quote.")
    else:
        lines.append("- Predictions and the page of the evaluation, which quote the data, are not published.")
    return "## What it holds of its data\n\n" + "\n".join(lines)


def _vocabulary(tokenizer: Any) -> str:
    if tokenizer["source"] == "train":
        return "made of the corpus: its entries are words, and pieces of words, of that text."
    if tokenizer["source"] == "hub" and tokenizer["repository"] != WITHHELD:
        return f"given, that of {markdown_code(tokenizer['repository'])} on the Hub; no word of the corpus was added."
    return "given, not made of the corpus of this training; of which text it was made is not recorded."
