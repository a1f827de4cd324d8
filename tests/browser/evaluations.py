"""Pages of evaluations from invented logits: questions, classes, values and entities, with planted text among them."""

import dataclasses
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np

from tasks.downstream.evaluate import score_logits
from tasks.downstream.ner.scores import NerDevSet, WordLogits
from tasks.downstream.scoring.near_duplicates import score_without_duplicates
from tasks.downstream.squad.answers import SquadWindows
from tasks.downstream.texts.scores import TextsDevSet
from tasks.records.duplicate_report import Duplicate, NearDuplicateReport, PairExcerpt, SourceReport
from tests.browser.planted import EVIL, LONG
from tests.tasks.downstream.entries import dev_set, make_question, task_with

TEXT = """the river rises in hills north of Elmora and reaches sea near Port Vessy after 212 miles where a bridge of
seven arches was built by Ida Maren in 1874 to carry grain wine and salt between two towns that had been at war"""
WORDS = TEXT.split()
FILES = [{"path": f"models/{name}/model.safetensors", "sha256": 16 * "0123"} for name in ("squad", LONG, EVIL)]
ABOUT = {"Model": f"fine-tuned minilm {EVIL}", "File": f"dev {EVIL}.csv"}
ASKED = ("What is it", "Who built it", "When was it built", "How many miles long is it", "Where does it end", "Why")


def planted(number, usual=""):
    return (EVIL, LONG, usual)[number % 3]


def questions(unanswerable=False):
    """Of SQuAD 1.1; or of 2.0, with questions that have no answer and a threshold."""
    random = np.random.default_rng(1)
    data = task_with("squad").params.data
    settings = {"data": data.model_copy(update={"unanswerable": "use"})} if unanswerable else {}
    asked = [_question(number, random, unanswerable and number % 3 == 0) for number in range(150)]
    pair = Duplicate("dev", 4, 0.91, f"training question {EVIL}")
    return _page(task_with("squad", "report", **settings), asked, _windows(asked, random), pair)


def _question(number, random, bare):
    words = list(random.choice(WORDS, size=int(random.integers(30, 300))))
    words[3] = planted(number, "plain")
    context, first = " ".join(words), int(random.integers(5, 25))
    answers = () if bare else (" ".join(words[first : first + number % 4 + 1]),)
    starts = (len(" ".join(words[:first])) + 1,) * len(answers)
    text = f"{ASKED[number % len(ASKED)]}, {EVIL if number % 20 == 0 else 'of those'}?"
    return make_question(f"q{number}-{EVIL if number == 3 else ''}", text, context, answers, starts, f"T{EVIL}")


def _windows(asked, random):
    """A window a question whose token of the answer is mostly the likeliest, in the place of files of them."""
    characters, logits, bounds = [], [], [0]
    for question in asked:
        ends = np.cumsum([len(word) + 1 for word in question.context.split(" ")]) - 1
        first = [0, *(ends[:-1] + 1).tolist()]
        scores = random.normal(0, 2, (2, len(ends)))
        for answer in question.answers:
            scores[0, first.index(answer.answer_start)] += 6
            scores[1, ends.tolist().index(answer.answer_start + len(answer.text))] += 6
        characters += zip(first, ends.tolist(), strict=True)
        logits.append(scores)
        bounds.append(len(characters))
    start, end = np.concatenate(logits, axis=1).astype(np.float32)
    nulls = np.array([[5.0, 5.0] if not question.answers else [2.0, 2.0] for question in asked], np.float32)
    windows = SquadWindows(np.arange(len(asked)), np.array(bounds), np.array(characters), start, end, nulls)
    parts = [(slice(0, len(asked)), windows)]
    return SimpleNamespace(parts=lambda: iter(parts), windows_of_examples=lambda: [1] * len(asked))


def classes():
    random = np.random.default_rng(2)
    labels = random.integers(0, 2, 200).astype(np.float64)
    logits = random.normal(0, 1.5, (200, 2))
    logits[np.arange(200), labels.astype(int)] += 2
    texts = [" ".join(random.choice(WORDS, size=12)) + planted(number) for number in range(200)]
    page = task_with("glue-sst2", "report")
    return _page(page, dev_set(page.scores, texts, labels), logits, Duplicate("dev", 4, 0.83, f"row {EVIL}"))


def values():
    random = np.random.default_rng(3)
    labels = random.uniform(0, 5, 150)
    texts = [f"{EVIL} a man plays\tsomebody plays {LONG}" for _ in labels]
    logits = labels[:, None] + random.normal(0, 0.7, (150, 1))
    page = task_with("glue-stsb", "report")
    return _page(page, dev_set(page.scores, texts, labels), logits, None)


def several_labels():
    """Texts with several labels, each with a threshold of its own; one label is only in the development set."""
    random = np.random.default_rng(5)
    names = ("politics", "sport", f"<b>art</b> {EVIL}", "new")
    thresholds = {"politics": 0.4, "sport": 0.5, names[2]: 0.6}
    evaluate = task_with("classification").params.evaluate.model_copy(update={"threshold": thresholds})
    page = task_with("classification", "report", multilabel=True, evaluate=evaluate)
    labels = (random.uniform(size=(160, 4)) < (0.5, 0.4, 0.2, 0.02)).astype(np.float64)
    logits = random.normal(0, 1.2, (160, 3)) + 3 * labels[:, :3] - 1.5
    texts = [" ".join(random.choice(WORDS, size=8 + number % 9)) + planted(number) for number in range(160)]
    examples = TextsDevSet(texts, labels, [f"{number}" for number in range(160)], names, 3)
    scores = dataclasses.replace(page.scores, known=names[:3], others=names[3:])
    pair = Duplicate("dev", 4, 0.83, f"row {EVIL}")
    return _page(dataclasses.replace(page, scores=scores), examples, logits, pair)


def entities():
    random = np.random.default_rng(4)
    tokens = [[str(word) for word in random.choice(WORDS, size=14)] for _ in range(120)]
    types = ("person", "location", "<b/data-planted>kind</b>")  # without a space, as in a CoNLL file
    labels = ("O", "B-person", "I-person", "B-location", "I-location")
    gold = []
    for number, words in enumerate(tokens):
        words[2] = planted(number, "Ada")
        gold.append(["O", "O", f"B-{types[number % 3]}", "O", *["O"] * 10])
    logits = random.normal(0, 1, (120 * 14, len(labels)))
    true = [labels.index(tag) if tag in labels else 0 for tags in gold for tag in tags]
    logits[np.arange(len(logits)), true] += 3
    examples = NerDevSet(tokens, gold, [f"line {15 * number + 1}" for number in range(120)])
    page = dataclasses.replace(task_with("ner", "report"), known=frozenset([tokens[0][2].casefold()]))
    words = WordLogits(labels, logits.astype(np.float32), np.arange(121) * 14)
    return _page(page, examples, words, Duplicate("dev", 4, 0.83, f"row {EVIL}"))


def _page(page, examples, logits, pair):
    with patch.object(type(page.scores), "read_split", lambda *_: (examples, logits)):
        view = score_logits(page)
    excerpts = (PairExcerpt(pair, f"one {EVIL} two", f"one {LONG} two"),) if pair else ()
    source = SourceReport(f"training examples {EVIL}", 1200, 3, (pair,) if pair else (), excerpts)
    near = score_without_duplicates(page.scores, NearDuplicateReport(0.8, (source,)), view.outcomes)
    metrics = {**view.metrics, "files": FILES}
    return str(page.page(dataclasses.replace(view, metrics=metrics, note=f"12 lost {EVIL}", near=near, about=ABOUT)))
