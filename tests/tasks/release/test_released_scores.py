"""Scores by hash in place of predictions: the same comparison, the same decision, and not a word of the data."""

from pathlib import Path

import numpy as np
import pytest

from ipu_model.core.files import write_json, write_text
from tasks.downstream.gate.released_scores import read_released_outcomes, read_scores, scores_json
from tasks.downstream.squad.questions import read_questions
from tasks.records.answer_places import ReferenceAnswer
from tasks.stage.errors import InputError
from tests.tasks.downstream.entries import dev_set, make_question, task_with
from tests.tasks.downstream.gate.gate_checkout import LIMITS, decide_on, passing_checkout  # noqa: F401 (a fixture)

SQUAD = task_with("squad", "scores")


@pytest.mark.parametrize(
    "released",
    [{"q0": "red house", "q1": "two", "q2": "Ærø & <b>Fyn</b>"}, {"q1": "two dogs"}, {}],
)
def test_the_gate_decides_alike_from_scores_and_from_predictions(
    checkout: Path,  # noqa: F811 (the fixture)
    released: dict[str, str],
) -> None:
    folder = checkout / LIMITS["released"]
    write_json(folder / "predictions.json", released)
    of_predictions = decide_on(checkout)["checks"]
    (folder / "predictions.json").unlink()
    questions = read_questions(checkout / "data/examples/squad/dev.parquet")
    answers = {"dev": [released.get(question.id) for question in questions]}
    write_text(folder / "scores.json", scores_json(SQUAD, {"dev": questions}, answers))
    assert decide_on(checkout)["checks"] == of_predictions
    write_json(folder / "predictions.json", released)
    with pytest.raises(InputError, match=r"scores\.json and predictions\.json"):
        decide_on(checkout)


@pytest.mark.parametrize(
    "change", [{"id": "q"}, {"question": "?"}, {"context": "c"}, {"answers": (ReferenceAnswer("x", 0),)}]
)
def test_a_key_is_of_this_very_question(change: dict[str, object]) -> None:
    question = make_question("q0", "What?", "red house", ("red", "house"))
    changed = question._replace(**change)  # type: ignore[arg-type]
    elsewhere = question._replace(
        title="other", answers=tuple(one._replace(answer_start=4) for one in question.answers)
    )
    key, *others = SQUAD.keys([question, changed, elsewhere])
    assert [other == key for other in others] == [False, True]


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"scores": {"%s": [1, 0.5]}}',
        '{"scores": {"dev": {"q0": [1, 1]}}}',
        '{"scores": {"dev": {"%s": [0.5, 1]}}}',
        '{"scores": {"dev": {"%s": [1, 7]}}}',
        '{"scores": {"dev": {"%s": "11"}}}',
        '{"scores": {"dev": {"%s": [1, NaN]}}}',
    ],
)
def test_damaged_scores_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "scores.json").write_text(text.replace("%s", "a" * 64), encoding="utf-8")
    with pytest.raises(InputError, match=r"scores\.json"):
        read_scores(SQUAD, tmp_path / "scores.json")


def test_scores_of_several_labels_are_read_without_their_examples(tmp_path: Path) -> None:
    """`podium verify` has a release alone: how many labels there are is in its file."""
    task, path = task_with("classification", "scores", multilabel=True), tmp_path / "scores.json"
    write_json(path, {"scores": {"dev": {"a" * 64: [1, 0, 1], "b" * 64: [0, 0, 0]}}})
    assert read_scores(task, path) == {"dev": {"a" * 64: [1.0, 0.0, 1.0], "b" * 64: [0.0, 0.0, 0.0]}}
    for wrong in ([1, 0], [1, 0, 0.5], []):
        write_json(path, {"scores": {"dev": {"a" * 64: [1, 0, 1], "b" * 64: wrong}}})
        with pytest.raises(InputError, match=r"scores\.json"):
            read_scores(task, path)


@pytest.mark.parametrize("name", ["sst2", "stsb", "mnli"])
def test_answers_to_glue_come_back_in_the_order_of_the_examples(tmp_path: Path, name: str) -> None:
    task, draw = task_with(f"glue-{name}", "scores"), np.random.default_rng(3)
    sets, answers = {}, {}
    for split in task.entry.development:
        texts = [f"text {n % 40}" for n in range(50)]  # ten of them twice
        sets[split] = dev_set(task, texts, np.zeros(50))
        high = 5.0 if task.task.is_regression else float(len(task.task.labels))
        drawn = draw.random(50) * high if task.task.is_regression else draw.integers(high, size=50).astype(float)
        answers[split] = drawn.round(6).tolist()
        assert len(set(task.keys(sets[split]))) == 50
    folder = tmp_path / "released"
    write_text(folder / "scores.json", scores_json(task, sets, answers))
    write_json(tmp_path / "old/predictions.json", answers)
    read, old = read_released_outcomes(task, sets, folder), read_released_outcomes(task, sets, tmp_path / "old")
    for split in sets:
        assert read[split].tolist() == old[split].tolist()
        assert read[split][:, 1].tolist() == answers[split]
    assert read_released_outcomes(task, sets, tmp_path / "none") is None
    other = {
        split: dev_set(task, [*examples.texts[:-1], "another"], examples.labels) for split, examples in sets.items()
    }
    write_text(folder / "scores.json", scores_json(task, other, answers))
    changed = read_released_outcomes(task, sets, folder)
    assert [int(np.isnan(outcomes[:, 1]).sum()) for outcomes in changed.values()] == [1] * len(sets), (
        "what it did not answer"
    )
