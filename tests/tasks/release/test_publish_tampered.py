"""What was changed after the verdict, or in it, is not published; nor is a verdict that the evidence does not give."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipu_model.core.files import sha256_of, write_json
from tasks.stage import artifacts
from tasks.stage.errors import GateRejected, InputError, PublishError
from tests.tasks.downstream.entries import change_parameters
from tests.tasks.release.released_checkout import publish_here
from tests.tasks.trained_checkout import make_glue_checkout, subject_in, write_gate, write_model

QUESTIONS, GLUE = "squad", "glue-sst2"
GATE, METRICS = artifacts.metrics_file("squad", "gate"), artifacts.metrics_file("squad")
PREDICTIONS = artifacts.predictions_file("squad")
REFUSED = (PublishError, GateRejected, InputError)


PARTS: dict[str, Callable[[Any], Path]] = {
    "weights": lambda subject: subject.model / "model.safetensors",
    "config": lambda subject: subject.model / "config.json",
    "tokenizer": lambda subject: artifacts.TOKENIZER / "tokenizer.json",
    "vocabulary": lambda subject: artifacts.TOKENIZER / "vocab.txt",
    "manifest": lambda subject: subject.rows[0] / "manifest.json",
    "predictions": lambda subject: subject.predictions,
    "verdict": lambda subject: artifacts.validation_report(subject.verdicts[-1]),
    "metrics": lambda subject: subject.metrics,
    "training": lambda subject: artifacts.METRICS / f"{subject.trainings[-1]}.json",
    "references": lambda subject: subject.references[0],
    "released": lambda subject: (
        artifacts.released_scores(subject.entry.name) / subject.entry.params.released_below / "scores.json"
    ),
    "page": lambda subject: artifacts.evaluation_page(subject.name),
    "mistakes": lambda subject: artifacts.mistakes_file(subject.name),
}
"""Part of what was judged -> its file."""


@pytest.fixture(scope="module")
def made(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {QUESTIONS: trained, GLUE: make_glue_checkout(tmp_path_factory.mktemp("glue") / "checkout")}


@pytest.fixture
def copied(made: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(made[name], tmp_path / "checkout"))


def change(path: Path, **values: Any) -> None:
    write_json(path, {**json.loads(path.read_text()), **values})


def require_refused(root: Path, name: str, words: str) -> None:
    with pytest.raises(REFUSED, match=words) as refused:
        publish_here(root, name)
    assert "dvc repro" in str(refused.value) or "stage wrote" in str(refused.value), "it says the way out"
    assert not (root / "published").exists()
    assert not (root / artifacts.receipt_file(name)).exists()
    assert list((root / "runs").glob("*")) == [], "copies stay nowhere"


@pytest.mark.parametrize("entry", [QUESTIONS, GLUE])
@pytest.mark.parametrize("part", PARTS)
def test_each_file_that_was_judged_is_bound_by_its_bytes(copied: Callable[[str], Path], entry: str, part: str) -> None:
    root = copied(entry)
    subject = subject_in(root, entry)
    assert publish_here(root, entry)["files"], "as it was judged it is published"
    shutil.rmtree(root / "published")
    (root / artifacts.receipt_file(subject.name)).unlink()
    name = PARTS[part](subject)
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.stat() if path.exists() else None
    with path.open("r+b" if before else "wb") as stream:  # in place, as through a hard link
        stream.seek(0, os.SEEK_END)
        stream.write(b" " if before else b"{}")
    if before:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    evaluated = Path("released", subject.entry.params.released_below, "scores.json") if part == "released" else name
    require_refused(root, entry, re.escape(str(evaluated)))


def forged_interval_and_judged_hash(root: Path) -> None:
    change(root / METRICS, f1_low=99.9)
    reseal(root, METRICS)


def reseal(root: Path, *names: Path) -> None:
    gate = json.loads((root / GATE).read_text())
    judged = {str(name): sha256_of(root / name) for name in names}
    change(root / GATE, judged={**gate["judged"], **judged})


def a_false_that_became_true(root: Path) -> None:
    write_gate(root, accepted=False)
    change(root / GATE, accepted=True)


def change_check(**values: Any) -> Callable[[Path], None]:
    def attack(root: Path) -> None:
        first, *others = json.loads((root / GATE).read_text())["checks"]
        change(root / GATE, checks=[{**first, **values}, *others])

    return attack


def change_file(path: Path, **values: Any) -> Callable[[Path], None]:
    return lambda root: change(root / path, **values)


def a_whole_verdict(root: Path) -> None:
    """Rejected on the evidence, rewritten without a contradiction, every hash right."""
    good = json.loads((root / GATE).read_text())
    change(root / PREDICTIONS, q1="a wrong answer", q2="another")
    write_gate(root)
    rejected = json.loads((root / GATE).read_text())
    assert not rejected["accepted"]
    change(root / GATE, **{**good, "judged": rejected["judged"]})


def predictions_that_fit_forged_metrics(root: Path) -> None:
    """Metrics and predictions agree with each other; the verdict is of the files before."""
    good = (root / PREDICTIONS).read_bytes()
    change(root / PREDICTIONS, q1="a wrong answer")
    write_gate(root)
    (root / PREDICTIONS).write_bytes(good)
    metrics = json.loads((root / METRICS).read_text())
    sha256 = sha256_of(root / PREDICTIONS)
    change(root / METRICS, files=[{**one, "sha256": sha256} for one in metrics["files"]])
    change(root / GATE, accepted=True, reasons=[])


def weights_judged_hash_and_all(root: Path) -> None:
    """The verdict names the new weights; the scores were counted on others."""
    write_model(root, seed=9)
    reseal(root, *(path.relative_to(root) for path in (root / artifacts.model_folder("squad")).iterdir()))


def a_link_to_others(root: Path) -> None:
    path = root / artifacts.model_folder("squad") / "model.safetensors"
    (root / "others").write_bytes(b"others")
    path.unlink()
    path.symlink_to(root / "others")


def a_missing_floor_unsaid(root: Path) -> None:
    gate = {"min_f1": None, "min_exact_match": None, "above_baseline": False}
    change_parameters(root, {"downstream": {"squad": {"gate": gate}}})
    write_gate(root)
    assert "without a floor" not in model_card_of(root), "the public card does not say it"
    change(root / GATE, without_floor="published with a floor")


def model_card_of(root: Path) -> str:
    """The card of a release that is taken back."""
    publish_here(root)
    card = (root / "published/podium-demo/README.md").read_text()
    shutil.rmtree(root / "published")
    (root / artifacts.receipt_file("squad")).unlink()
    return card


def one_file_more(root: Path) -> None:
    (root / artifacts.model_folder("squad") / "ipu_config.json").write_text("{}")


def lower_limits(root: Path) -> None:
    path = root / "params.yaml"
    path.write_text(path.read_text().replace("min_f1: 85.0", "min_f1: 0.0"))


def a_verdict_from_before(root: Path) -> None:
    gate = json.loads((root / GATE).read_text())
    write_json(root / GATE, {k: v for k, v in gate.items() if k != "judged"})


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (change_file(METRICS, f1=99.9), "metrics/squad.json has SHA-256"),
        (forged_interval_and_judged_hash, "f1_low=99.9, computed"),
        (a_false_that_became_true, "differs from .*: reasons. "),
        (change_check(ok=False), "differs from .*: f1, checks. "),
        (change_file(GATE, checks=[]), "differs from .*: f1, .*scores_belong_to_predictions"),
        (change_file(GATE, checks="all passed"), "differs from .*: f1"),
        (
            change_file(GATE, metrics={"exact_match": 100.0, "f1": 99.9}),
            "differs from .*: metrics. ",
        ),
        (
            change_file(GATE, recipe=[{"title": "F1", "mean": 99.9}]),
            "differs from .*: recipe. ",
        ),
        (change_check(found=100.5), "differs from .*: f1"),
        (a_whole_verdict, "accepts the model, but the evidence does not"),
        (predictions_that_fit_forged_metrics, "covers other files: evaluation/squad/predictions.json has SHA-256"),
        (weights_judged_hash_and_all, "or weights"),
        (a_link_to_others, "model.safetensors has SHA-256"),
        (a_missing_floor_unsaid, "differs from .*: without_floor. "),
        (one_file_more, "ipu_config.json has SHA-256 .*evaluated was none"),
        (
            lower_limits,
            r"other parameters.*downstream\.squad\.gate\.min_f1 is 0\.0, but stage gate@squad ran with 85\.0\. Run",
        ),
        (a_verdict_from_before, "does not list the evaluated files.*dvc repro gate@squad"),
    ],
)
def test_a_verdict_that_the_evidence_does_not_give_is_refused(
    copied: Callable[[str], Path], attack: Callable[[Path], None], words: str
) -> None:
    root = copied(QUESTIONS)
    attack(root)
    require_refused(root, QUESTIONS, f"(?s){words}")


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ({"accuracy": 100.0}, "accuracy=100.0, computed 90.0.*single-item evaluate@glue-sst2"),
        ({"honesty": 100.0, "honesty_low": 99.0, "honesty_high": 100.0}, "honesty_low, not a score of this task"),
    ],
)
def test_other_scores_of_a_glue_task_are_refused_though_the_verdict_names_their_bytes(
    copied: Callable[[str], Path], scores: dict[str, float], words: str
) -> None:
    root = copied(GLUE)
    subject = subject_in(root, GLUE)
    change(root / subject.metrics, **scores)
    gate = json.loads((root / subject.gate).read_text())
    judged = {**gate["judged"], str(subject.metrics): sha256_of(root / subject.metrics)}
    change(root / subject.gate, judged=judged)
    require_refused(root, GLUE, words)


def test_a_pipe_in_place_of_a_file_does_not_hang(copied: Callable[[str], Path]) -> None:
    root = copied(QUESTIONS)
    path = root / artifacts.model_folder("squad") / "config.json"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="not a regular file"):
        publish_here(root, QUESTIONS)


def test_where_a_release_goes_and_who_watches_is_not_judged(copied: Callable[[str], Path]) -> None:
    root = copied(QUESTIONS)
    path = root / "params.yaml"
    text = path.read_text().replace("folder: published/podium-demo", "folder: published/elsewhere")
    path.write_text(text.replace("  project: podium", "  project: another"))
    assert publish_here(root, QUESTIONS)["folder"] == "published/elsewhere"
