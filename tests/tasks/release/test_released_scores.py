"""Scores by hash in place of predictions: the same comparison, the same decision, and not a word of the data."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream.evidence import compare, compare_scores
from tasks.downstream.gate import _no_drop, _no_exact_drop
from tasks.downstream.glue.answers import Examples
from tasks.downstream.glue.examples import schema_of
from tasks.downstream.glue.released import keys_of, read_released
from tasks.downstream.glue.released import scores_json as glue_scores_json
from tasks.downstream.glue.tasks import TASKS
from tasks.downstream.squad.files import Question, read_dev_questions
from tasks.downstream.squad.question_scores import key_of, read_scores, scores_json
from tasks.project import artifacts
from tasks.project.errors import InputError
from tasks.project.files import write_json, write_text
from tasks.project.params import GateParams
from tests.tasks.downstream.test_gate_stage import LIMITS, checkout, decide_on  # noqa: F401 (a fixture)

WORDS = ("red", "blue", "green", "house", "river", "the", "a", "St.", "1990")


def questions_and_answers(count: int, seed: int) -> tuple[list[Question], dict[str, str], dict[str, str]]:
    """Questions, and what two models answered to most of them."""
    draw = random.Random(seed)  # noqa: S311 (no secret)

    def text() -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(1, 4)))

    questions = [Question(f"q{n}", f"What {text()}?", f"{text()} {n}", (text(), text())) for n in range(count)]
    models = [
        {q.id: q.answers[0] if draw.random() < right else text() for q in questions if draw.random() < 0.95}
        for right in (0.6, 0.7)
    ]
    return questions, models[0], models[1]


@pytest.mark.parametrize("seed", range(5))
def test_scores_give_the_very_comparison_that_predictions_give(tmp_path: Path, seed: int) -> None:
    questions, ours, theirs = questions_and_answers(200, seed)
    (tmp_path / "scores.json").write_text(scores_json(questions, theirs), encoding="utf-8")
    of_scores = compare_scores(questions, ours, read_scores(tmp_path / "scores.json"))
    of_predictions = compare(questions, ours, theirs)
    assert of_scores == of_predictions
    assert 150 < len(of_scores.released_f1) < 200, "some were not answered"
    limits = GateParams(**LIMITS)
    for check in (_no_drop, _no_exact_drop):  # sample size, bootstrap and McNemar's test
        assert check(of_scores, limits) == check(of_predictions, limits)


@pytest.mark.parametrize(
    "released",
    [
        {"q0": "red house", "q1": "two", "q2": "Ærø & <b>Fyn</b>"},
        {"q0": "sea", "q1": "cat", "q2": "Lolland"},
        {"q1": "two dogs"},
        {},
    ],
)
def test_the_gate_decides_alike_from_scores_and_from_predictions(
    checkout: Path,  # noqa: F811 (the fixture)
    released: dict[str, str],
) -> None:
    folder = checkout / LIMITS["released"]
    write_json(folder / "predictions.json", released)
    of_predictions = decide_on(checkout)
    (folder / "predictions.json").unlink()
    questions = read_dev_questions(checkout / "data/questions/dev.parquet")
    write_text(folder / "scores.json", scores_json(questions, released))
    assert decide_on(checkout) == of_predictions
    write_json(folder / "predictions.json", released)
    with pytest.raises(InputError, match=r"scores\.json and predictions\.json, which may be of two models"):
        decide_on(checkout)


@pytest.mark.parametrize("change", [{"id": "q"}, {"question": "?"}, {"context": "c"}, {"answers": ("x",)}])
def test_a_key_is_of_this_very_question(change: dict[str, object]) -> None:
    question = Question("q0", "What?", "red house", ("red", "house"))
    assert key_of(dataclasses.replace(question, **change)) != key_of(question)  # type: ignore[arg-type]
    assert key_of(dataclasses.replace(question, title="other", answer_starts=(4,))) == key_of(question)


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", '{"scores": {"q0": [1, 1]}}', '{"scores": {"%s": [0.5, 1]}}', '{"scores": {"%s": [1, 7]}}',
     '{"scores": {"%s": [1]}}', '{"scores": {"%s": "11"}}', '{"scores": {"%s": [1, NaN]}}'],
)  # fmt: skip
def test_damaged_scores_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "scores.json").write_text(text.replace("%s", "a" * 64), encoding="utf-8")
    with pytest.raises(InputError, match=r"scores\.json.*take evaluation/scores\.json of a release"):
        read_scores(tmp_path / "scores.json")


@pytest.mark.parametrize("name", ["sst2", "stsb", "mnli"])
def test_answers_to_glue_come_back_in_the_order_of_the_examples(tmp_path: Path, name: str) -> None:
    task, draw = TASKS[name], np.random.default_rng(3)
    sets, answers = {}, {}
    for split in task.splits[1:]:
        texts = [f"text {n % 40}" for n in range(50)]  # ten of them twice
        path = tmp_path / artifacts.glue_folder(name) / f"{split}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"first": text, "second": None, "label": 0} for text in texts]
        pq.write_table(pa.Table.from_pylist(rows, schema=schema_of(task)), path)
        sets[split] = Examples(texts, np.zeros(50))
        high = 5.0 if task.is_regression else float(len(task.labels))
        answers[split] = draw.random(50) * high if task.is_regression else draw.integers(high, size=50).astype(float)
        assert len(set(keys_of(sets[split]))) == 50
    folder = tmp_path / "released"
    write_text(folder / "scores.json", glue_scores_json(task, sets, answers))
    write_json(tmp_path / "old/predictions.json", {k: v.round(6).tolist() for k, v in answers.items()})
    found, old = read_released(task, folder, tmp_path), read_released(task, tmp_path / "old", tmp_path)
    assert found is not None
    assert old is not None
    for split in sets:
        assert found[split].tolist() == old[split].tolist()
    assert read_released(task, tmp_path / "none", tmp_path) is None
    other = {split: Examples([*one.texts[:-1], "another"], one.labels) for split, one in sets.items()}
    write_text(folder / "scores.json", glue_scores_json(task, other, answers))
    with pytest.raises(InputError, match="holds 50 answers of dev.*, 49 of them to the 50 examples"):
        read_released(task, folder, tmp_path)
