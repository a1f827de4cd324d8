"""Pages of evaluations from invented logits: questions, classes, values and entities, with planted text among them."""

import dataclasses

import numpy as np

from tasks.downstream.evaluate import judge_confidences
from tasks.downstream.ner.scores import NerDevSet, WordLogits
from tasks.downstream.scoring.near_duplicates import score_without_duplicates
from tasks.downstream.scoring.report import EvaluationView
from tasks.downstream.squad.answers import SquadWindows
from tasks.downstream.texts.scores import TextsDevSet
from tasks.records.duplicate_report import Duplicate, NearDuplicateReport, PairExcerpt, SourceReport
from tasks.records.tags import find_entities
from tests.browser.planted import EVIL, LONG
from tests.tasks.downstream.entries import dev_set, make_question, task_with

TEXT = """the river rises in hills north of Elmora and reaches sea near Port Vessy after 212 miles where a bridge of
seven arches was built by Ida Maren in 1874 to carry grain wine and salt between two towns that had been at war"""
WORDS = TEXT.split()
FILES = [{"path": f"models/{name}/model.safetensors", "sha256": 16 * "0123"} for name in ("squad", LONG, EVIL)]
ABOUT = {"Model": f"fine-tuned minilm {EVIL}", "File": f"dev {EVIL}.csv"}
ASKED = ("What is it", "Who built it", "When was it built", "How many miles long is it", "Where does it end", "Why")


def questions(unanswerable=False):
    """Of SQuAD 1.1; or of 2.0, with questions that have no answer and a threshold."""
    random = np.random.default_rng(1)
    data = task_with("squad").params.data
    given = {"data": data.model_copy(update={"unanswerable": "use"})} if unanswerable else {}
    task = task_with("squad", "report", **given)
    asked = [_question(number, random, unanswerable and number % 3 == 0) for number in range(150)]
    return _page(task, asked, _windows(asked, random), Duplicate("dev", 4, 0.91, f"training question {EVIL}"))


def _question(number, random, bare):
    words = list(random.choice(WORDS, size=int(random.integers(30, 300))))
    words[3] = (EVIL, LONG, "plain")[number % 3]
    context, first = " ".join(words), int(random.integers(5, 25))
    answer = " ".join(words[first : first + number % 4 + 1])
    start = len(" ".join(words[:first])) + 1
    text = f"{ASKED[number % len(ASKED)]}, {EVIL if number % 20 == 0 else 'of those'}?"
    found = () if bare else (answer,)
    return make_question(
        f"q{number}-{EVIL if number == 3 else ''}", text, context, found, (start,) * len(found), f"T{EVIL}"
    )


class KeptWindows:
    """Windows of invented logits in the place of files of them (WindowFiles), one for each question."""

    def __init__(self, windows):
        self._windows = windows

    def parts(self):
        yield slice(0, len(self._windows)), self._windows

    def windows_of_examples(self):
        return [1] * len(self._windows)


def _windows(asked, random):
    """A window a question whose token of the answer is mostly the likeliest."""
    characters, start, end, bounds = [], [], [], [0]
    for question in asked:
        place, tokens = 0, []
        for word in question.context.split(" "):
            tokens.append((place, place + len(word)))
            place += len(word) + 1
        logits = random.normal(0, 2, (2, len(tokens)))
        if question.answers:
            answer = question.answers[0]
            logits[0, [one for one, _ in tokens].index(answer.answer_start)] += 6
            logits[1, [last for _, last in tokens].index(answer.answer_start + len(answer.text))] += 6
        characters += tokens
        start += logits[0].tolist()
        end += logits[1].tolist()
        bounds.append(len(characters))
    nulls = np.array([[5.0, 5.0] if not question.answers else [2.0, 2.0] for question in asked], np.float32)
    windows = SquadWindows(
        np.arange(len(asked)),
        np.array(bounds),
        np.array(characters),
        np.array(start, np.float32),
        np.array(end, np.float32),
        nulls,
    )
    return KeptWindows(windows)


def classes():
    random = np.random.default_rng(2)
    labels = random.integers(0, 2, 200).astype(np.float64)
    logits = random.normal(0, 1.5, (200, 2))
    logits[np.arange(200), labels.astype(int)] += 2
    texts = [" ".join(random.choice(WORDS, size=12)) + (EVIL, LONG, "")[number % 3] for number in range(200)]
    task = task_with("glue-sst2", "report")
    return _page(task, dev_set(task.scores, texts, labels), logits, Duplicate("dev", 4, 0.83, f"row {EVIL}"))


def values():
    random = np.random.default_rng(3)
    labels = random.uniform(0, 5, 150)
    texts = [f"{EVIL} a man plays\tsomebody plays {LONG}" for _ in labels]
    logits = labels[:, None] + random.normal(0, 0.7, (150, 1))
    task = task_with("glue-stsb", "report")
    return _page(task, dev_set(task.scores, texts, labels), logits, None)


def several_labels():
    """Texts with several labels, each with a threshold of its own; one label is only in the development set."""
    random = np.random.default_rng(5)
    names = ("politics", "sport", f"<b>art</b> {EVIL}", "new")
    task = task_with("classification", "report", **multilabel({"politics": 0.4, "sport": 0.5, names[2]: 0.6}))
    labels = (random.uniform(size=(160, 4)) < (0.5, 0.4, 0.2, 0.02)).astype(np.float64)
    logits = random.normal(0, 1.2, (160, 3)) + 3 * labels[:, :3] - 1.5
    texts = [
        " ".join(random.choice(WORDS, size=8 + number % 9)) + (EVIL, LONG, "")[number % 3] for number in range(160)
    ]
    examples = TextsDevSet(texts, labels, [f"{number}" for number in range(160)], names, 3)
    known = dataclasses.replace(task.scores, known=names[:3], others=names[3:])
    return _page(dataclasses.replace(task, scores=known), examples, logits, Duplicate("dev", 4, 0.83, f"row {EVIL}"))


def multilabel(thresholds):
    params = task_with("classification").params
    evaluate = params.evaluate.model_copy(update={"threshold": thresholds})
    return {"multilabel": True, "evaluate": evaluate}


def entities():
    random = np.random.default_rng(4)
    tokens = [[str(word) for word in random.choice(WORDS, size=14)] for _ in range(120)]
    types = ("person", "location", "<b/data-planted>kind</b>")  # without a space, as in a CoNLL file
    labels = ("O", "B-person", "I-person", "B-location", "I-location")
    gold = []
    for number, words in enumerate(tokens):
        words[2] = (EVIL, LONG, "Ada")[number % 3]
        gold.append(["O", "O", f"B-{types[number % 3]}", "O", *["O"] * 10])
    logits = random.normal(0, 1, (120 * 14, len(labels)))
    true = [labels.index(tag) if tag in labels else 0 for tags in gold for tag in tags]
    logits[np.arange(len(logits)), true] += 3
    task, examples = task_with("ner", "report"), NerDevSet(tokens, gold, [f"line {15 * n + 1}" for n in range(120)])
    known = frozenset(" ".join(tokens[0][one.first : one.last]).casefold() for one in find_entities(gold[0]))
    found = WordLogits(labels, logits.astype(np.float32), np.arange(121) * 14)
    return _page(dataclasses.replace(task, known=known), examples, found, Duplicate("dev", 4, 0.83, f"row {EVIL}"))


def _page(task, examples, logits, pair):
    return str(task.page(evaluated(task, examples, logits, pair)))


def evaluated(page, examples, logits, pair):
    task = page.scores
    answers = task.answer(examples, logits)
    predictions = task.predictions(answers)
    outcomes = {"dev": task.outcomes(examples, predictions)}
    slices = page.slices("dev", examples, logits, answers, outcomes["dev"])
    calibrated, curve = judge_confidences(task, {"dev": examples}, {"dev": answers}, outcomes)
    baselines = task.baselines({"dev": examples})
    baseline = task.best_of(baselines)
    metrics = {
        **task.figures(outcomes, baseline),
        **({} if calibrated is None else calibrated.record()),
        "answered": len(predictions),
        "files": FILES,
    }
    shown = (PairExcerpt(pair, f"one {EVIL} two", f"one {LONG} two"),) if pair else ()
    source = SourceReport(f"training examples {EVIL}", 1200, 3, (pair,) if pair else (), shown)
    near = score_without_duplicates(task, NearDuplicateReport(0.8, (source,)), outcomes)
    view = EvaluationView(
        {"dev": examples},
        {"dev": answers},
        {"dev": predictions},
        outcomes,
        slices,
        calibrated,
        metrics,
        f"12 lost {EVIL}",
        near,
        curve,
        ABOUT,
        page.own_curve({"dev": examples}, {"dev": answers}),
        baseline.name if baseline else "",
        baselines=baselines,
    )
    return dataclasses.replace(view, metrics={**metrics, **page.more_figures(view)})
