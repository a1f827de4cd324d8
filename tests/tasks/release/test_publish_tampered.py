"""What changed after the verdict, in it or during publishing is not published."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ipu_model.core.files import HOST, sha256_of, write_json
from tasks.stage import artifacts
from tasks.stage.errors import GateRejected, InputError, PodiumError, PublishError
from tests.hub_server import HubServer
from tests.tasks.downstream.entries import change_parameters
from tests.tasks.release.hub_publishing import NAME, commits, content
from tests.tasks.release.released_checkout import publish_here
from tests.tasks.trained_checkout import PROJECT, make_glue_checkout, subject_in, write_gate, write_model

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


def an_unknown_score_and_judged_hash(root: Path) -> None:
    change(root / METRICS, honesty=100.0, honesty_low=99.0, honesty_high=100.0)
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
    change(root / GATE, without_floor="published with a floor")


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
        (an_unknown_score_and_judged_hash, "honesty_low"),
        (a_false_that_became_true, "differs from .*: reasons. "),
        (change_check(ok=False), "differs from .*: f1, checks. "),
        (change_file(GATE, checks=[]), "differs from .*: f1, .*scores_belong_to_predictions"),
        (change_file(GATE, metrics={"exact_match": 100.0, "f1": 99.9}), "differs from .*: metrics. "),
        (change_file(GATE, recipe=[{"title": "F1", "mean": 99.9}]), "differs from .*: recipe. "),
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


def test_a_pipe_in_place_of_a_file_does_not_hang(copied: Callable[[str], Path]) -> None:
    root = copied(QUESTIONS)
    path = root / artifacts.model_folder("squad") / "config.json"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="config.json"):
        publish_here(root, QUESTIONS)


SWAPPED = {
    "models/squad/model.safetensors": "model.safetensors",
    "models/squad/config.json": "config.json",
    "data/tokenizer/tokenizer.json": "tokenizer.json",
    "data/tokenizer/vocab.txt": "vocab.txt",
    "evaluation/squad/predictions.json": "evaluation/predictions.json",
    "metrics/squad.json": None,
    "evaluation/squad/report.html": "evaluation/report.html",
    "evaluation/squad/mistakes.csv": "evaluation/mistakes.csv",
    "metrics/squad-gate.json": None,
    "metrics/squad-predict.json": None,
    "reports/validation/corpus.json": None,
}
"""File of the project -> its name in the release."""


@pytest.fixture
def project(checkout: Path) -> Path:
    change_parameters(checkout, {"publish": {"examples": True}})
    (checkout / "metrics/squad-predict.json").write_text('{"runtime": "cpu", "precision": "fp32"}')
    return checkout


@dataclass
class Swap:
    """Another file in the place of one that is opened, from its n-th opening on."""

    target: str = ""
    other: str = ""
    at: int = 0
    opened: int = 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not self.target or not isinstance(arguments[0], str | os.PathLike):
            return
        if os.path.abspath(os.fspath(arguments[0])) == self.target:
            self.opened += 1
            if self.opened == self.at:
                os.replace(self.other, self.target)


SWAP = Swap()
sys.addaudithook(SWAP)  # which stays as long as the process


def publish_swapped(root: Path, name: str, at: int) -> tuple[str, int]:
    """Publish with another file of the same size in place from the n-th opening on.

    Returns what was wrong, and how often the file was opened.
    """
    text = (root / name).read_bytes()
    (root / "other").write_bytes(text[:-2] + bytes([text[-2] ^ 1]) + text[-1:])
    SWAP.other, SWAP.at, SWAP.opened, SWAP.target = str(root / "other"), at, 0, str(root / name)
    try:
        publish_here(root)
    except PodiumError as error:
        return str(error), SWAP.opened
    finally:
        SWAP.target = ""
    return "", SWAP.opened


@pytest.mark.parametrize("name", SWAPPED)
def test_a_file_that_is_replaced_at_any_opening_is_never_sent_to_a_folder(project: Path, name: str) -> None:
    judged = json.loads((project / "metrics/squad-gate.json").read_text())["judged"]
    pristine = shutil.copytree(project, project.with_name("pristine"))
    for at in range(1, 6):
        shutil.rmtree(project)
        shutil.copytree(pristine, project)
        error, opened = publish_swapped(project, name, at)
        published = project / "published/podium-demo"
        if error:
            assert not published.exists()
        elif (sent := SWAPPED[name]) is not None:
            assert sha256_of(published / sent) == judged[name]
        assert opened <= (2 if name == "metrics/squad-gate.json" else 1)  # whose answer is asked for before
        if opened < at:
            assert not error, "nothing was replaced"
            return
    raise AssertionError(f"{name} was opened too often")


@pytest.mark.parametrize("name", ["models/squad/model.safetensors", "evaluation/squad/predictions.json"])
def test_a_file_replaced_at_any_opening_is_never_sent_to_the_hub(project: Path, hub: HubServer, name: str) -> None:
    judged = json.loads((project / "metrics/squad-gate.json").read_text())["judged"]
    to = {"publish": {"target": "hub"}, "downstream": {"squad": {"publish": {"repository": NAME}}}}
    change_parameters(project, to)
    before = (project / name).read_bytes()
    error, _ = publish_swapped(project, name, 1)
    assert f"{name} has SHA-256" in error
    assert hub.sent("POST", "commit") == []
    (project / name).write_bytes(before)
    assert publish_swapped(project, name, 2)[0] == ""
    (commit,) = commits(hub)
    (project / "sent").write_bytes(content(hub, commit)[SWAPPED[name]])
    assert sha256_of(project / "sent") == judged[name]


def test_copies_are_for_this_user_alone_and_those_of_a_killed_publish_go_away(project: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left, running = (project / "runs" / f"held.{HOST}-{process}.partial" for process in (dead.pid, os.getppid()))
    for folder in (left, running):
        folder.mkdir(mode=0o700, parents=True)
    watch = """
import os, runpy, stat, sys
seen = set()
def look(event, arguments):
    if event == "open" and "held." in str(arguments[0]):
        folder = str(arguments[0]).partition(".partial")[0] + ".partial"
        seen.add(oct(stat.S_IMODE(os.stat(folder).st_mode)))
sys.addaudithook(look)
sys.argv = ["tasks.release.publish"]
runpy.run_module("tasks.release.publish", run_name="__main__")
print(sorted(seen))
"""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run([sys.executable, "-c", watch], cwd=project, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "['0o700']", done.stderr
    assert [path.name for path in (project / "runs").iterdir()] == [running.name]
