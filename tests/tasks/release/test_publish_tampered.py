"""What changed after the verdict, in it or during publishing is not published."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipu_model.core.files import HOST, read_json, sha256_of, write_json
from tasks.stage import artifacts
from tasks.stage.errors import GateRejected, InputError, PodiumError, PublishError
from tests.hub_server import HubServer
from tests.places import ROOT
from tests.tasks.downstream.entries import change_parameters
from tests.tasks.release.hub_publishing import NAME, commits, content
from tests.tasks.release.released_checkout import publish_here
from tests.tasks.trained_checkout import make_glue_checkout, subject_in, write_gate, write_model

QUESTIONS, GLUE = "squad", "glue-sst2"
GATE, METRICS = artifacts.metrics_file("squad", "gate"), artifacts.metrics_file("squad")
MODEL, PREDICTIONS = artifacts.model_folder("squad"), artifacts.predictions_file("squad")
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
    "released": lambda subject: artifacts.released_scores(subject.name) / subject.entry.params.released_below,
    "page": lambda subject: artifacts.evaluation_page(subject.name),
    "mistakes": lambda subject: artifacts.mistakes_file(subject.name),
}
"""Part of what was judged -> its file, or the folder of its scores."""


@pytest.fixture(scope="module")
def made(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {QUESTIONS: trained, GLUE: make_glue_checkout(tmp_path_factory.mktemp("glue") / "checkout")}


def change(path: Path, **values: Any) -> None:
    write_json(path, {**read_json(path), **values})


def require_refused(root: Path, name: str, words: str) -> None:
    with pytest.raises((PublishError, GateRejected, InputError), match=words) as refused:
        publish_here(root, name)
    assert "dvc repro" in str(refused.value) or "stage wrote" in str(refused.value), "it says the way out"
    assert not (root / "published").exists()
    assert not (root / artifacts.receipt_file(name)).exists()
    assert list((root / "runs").glob("*")) == [], "copies stay nowhere"


@pytest.mark.parametrize("entry", [QUESTIONS, GLUE])
def test_each_file_that_was_judged_is_bound_by_its_bytes(made: dict[str, Path], tmp_path: Path, entry: str) -> None:
    root = Path(shutil.copytree(made[entry], tmp_path / "checkout"))
    subject = subject_in(root, entry)
    assert publish_here(root, entry)["files"], "as it was judged it is published"
    shutil.rmtree(root / "published")
    (root / artifacts.receipt_file(subject.name)).unlink()
    for part, find in PARTS.items():
        path = root / find(subject) / ("scores.json" if part == "released" else "")
        before = (path.read_bytes(), path.stat()) if path.exists() else None
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as stream:  # in place, as through a hard link
            stream.write(b" " if before else b"{}")
        if before:
            os.utime(path, ns=(before[1].st_atime_ns, before[1].st_mtime_ns))
        below = Path("released", subject.entry.params.released_below, "scores.json")
        evaluated = below if part == "released" else path.relative_to(root)
        require_refused(root, entry, re.escape(str(evaluated)))
        if before:
            path.write_bytes(before[0])
        else:
            path.unlink()


def reseal(root: Path, *names: Path) -> None:
    judged = {str(name): sha256_of(root / name) for name in names}
    change(root / GATE, judged={**read_json(root / GATE)["judged"], **judged})


def change_scores_and_seal(root: Path, **values: Any) -> None:
    change(root / METRICS, **values)
    reseal(root, METRICS)


def a_false_that_became_true(root: Path) -> None:
    write_gate(root, accepted=False)
    change(root / GATE, accepted=True)


def a_failed_check(root: Path) -> None:
    first, *others = read_json(root / GATE)["checks"]
    change(root / GATE, checks=[{**first, "ok": False}, *others])


def a_whole_verdict(root: Path) -> None:
    """Rejected on the evidence, rewritten without a contradiction, every hash right."""
    good = read_json(root / GATE)
    change(root / PREDICTIONS, q1="a wrong answer", q2="another")
    write_gate(root)
    rejected = read_json(root / GATE)
    assert not rejected["accepted"]
    change(root / GATE, **{**good, "judged": rejected["judged"]})


def predictions_that_fit_forged_metrics(root: Path) -> None:
    """Metrics and predictions agree with each other; the verdict is of the files before."""
    good = (root / PREDICTIONS).read_bytes()
    change(root / PREDICTIONS, q1="a wrong answer")
    write_gate(root)
    (root / PREDICTIONS).write_bytes(good)
    sha256, files = sha256_of(root / PREDICTIONS), read_json(root / METRICS)["files"]
    change(root / METRICS, files=[{**scored, "sha256": sha256} for scored in files])
    change(root / GATE, accepted=True, reasons=[])


def weights_judged_hash_and_all(root: Path) -> None:
    """The verdict names the new weights; the scores were counted on others."""
    write_model(root, seed=9)
    reseal(root, *(path.relative_to(root) for path in (root / MODEL).iterdir()))


def a_link_to_others(root: Path) -> None:
    (root / MODEL / "model.safetensors").rename(root / "others")
    (root / MODEL / "model.safetensors").symlink_to(root / "others")
    (root / "others").write_bytes(b"others")


def a_missing_floor_unsaid(root: Path) -> None:
    gate = {"min_f1": None, "min_exact_match": None, "above_baseline": False}
    change_parameters(root, {"downstream": {"squad": {"gate": gate}}})
    write_gate(root)
    change(root / GATE, without_floor="published with a floor")


def a_pipe(root: Path) -> None:
    (root / MODEL / "config.json").unlink()
    os.mkfifo(root / MODEL / "config.json")


LOWER = {"downstream": {"squad": {"gate": {"min_f1": 0.0}}}}
HONESTY = {"honesty": 100.0, "honesty_low": 99.0, "honesty_high": 100.0}


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        (lambda root: change(root / METRICS, f1=99.9), "metrics/squad.json has SHA-256"),
        (lambda root: change_scores_and_seal(root, f1_low=99.9), "f1_low=99.9, computed"),
        (lambda root: change_scores_and_seal(root, **HONESTY), "honesty_low"),
        (a_false_that_became_true, "differs from .*: reasons. "),
        (a_failed_check, "differs from .*: f1, checks. "),
        (lambda root: change(root / GATE, checks=[]), "differs from .*: f1, .*scores_belong_to_predictions"),
        (lambda root: change(root / GATE, metrics={"exact_match": 100.0, "f1": 99.9}), "differs from .*: metrics. "),
        (lambda root: change(root / GATE, recipe=[{"title": "F1", "mean": 99.9}]), "differs from .*: recipe. "),
        (a_whole_verdict, "accepts the model, but the evidence does not"),
        (predictions_that_fit_forged_metrics, "other files: evaluation/squad/predictions.json has SHA-256"),
        (weights_judged_hash_and_all, "or weights"),
        (a_link_to_others, "model.safetensors has SHA-256"),
        (a_missing_floor_unsaid, "differs from .*: without_floor. "),
        (lambda root: (root / MODEL / "ipu_config.json").write_text("{}"), "ipu_config.json has SHA-256 .* was none"),
        (lambda root: change_parameters(root, LOWER), r"gate\.min_f1 is 0\.0, .* gate@squad ran with 85\.0\. Run"),
        (lambda root: write_json(root / GATE, {"accepted": True}), "does not list the evaluated files"),
        (a_pipe, "config.json"),
    ],
)
def test_a_verdict_that_the_evidence_does_not_give_is_refused(
    checkout: Path, attack: Callable[[Path], Any], words: str
) -> None:
    attack(checkout)
    require_refused(checkout, QUESTIONS, f"(?s){words}")


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


SWAP: dict[str, Any] = {"target": ""}
"""Another file in the place of one that is opened, from its n-th opening on."""


def swap(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not SWAP["target"] or not isinstance(arguments[0], str | os.PathLike):
        return
    if os.path.abspath(os.fspath(arguments[0])) == SWAP["target"]:
        SWAP["opened"] += 1
        if SWAP["opened"] == SWAP["at"]:
            os.replace(SWAP["other"], SWAP["target"])


sys.addaudithook(swap)  # which stays as long as the process


def publish_swapped(root: Path, name: str, at: int) -> tuple[str, int]:
    """Publish with another file of the same size in place from the n-th opening on.

    Returns what was wrong, and how often the file was opened.
    """
    text = (root / name).read_bytes()
    (root / "other").write_bytes(text[:-2] + bytes([text[-2] ^ 1]) + text[-1:])
    SWAP.update(other=str(root / "other"), at=at, opened=0, target=str(root / name))
    try:
        publish_here(root)
    except PodiumError as error:
        return str(error), SWAP["opened"]
    finally:
        SWAP["target"] = ""
    return "", SWAP["opened"]


@pytest.mark.parametrize("name", SWAPPED)
def test_a_file_that_is_replaced_at_any_opening_is_never_sent_to_a_folder(project: Path, name: str) -> None:
    judged = read_json(project / GATE)["judged"]
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
    judged = read_json(project / GATE)["judged"]
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


WATCH = """
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


def test_copies_are_for_this_user_alone_and_those_of_a_killed_publish_go_away(project: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left, running = (project / "runs" / f"held.{HOST}-{process}.partial" for process in (dead.pid, os.getppid()))
    for folder in (left, running):
        folder.mkdir(mode=0o700, parents=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", WATCH], cwd=project, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "['0o700']", done.stderr
    assert [path.name for path in (project / "runs").iterdir()] == [running.name]
