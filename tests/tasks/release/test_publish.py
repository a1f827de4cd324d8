"""Publishing to a folder: gate first, whole or not at all, the same content once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ipu_model.core.files import HOST, sha256_of, write_json
from tasks.params.schema import parameter_values
from tasks.release.publish import publish
from tasks.stage import artifacts
from tasks.stage.errors import PublishError
from tests.tasks.release.released_checkout import compared_with_newest
from tests.tasks.trained_checkout import PROJECT, params_with, write_gate, write_model

FOLDER = "published/podium-demo"


def publish_here(root: Path, examples: bool = False, **options: bool) -> dict:
    params = params_with(examples=examples)
    return publish(parameter_values(params), "squad", root, **options)


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


LAYOUT = "config.json evaluation/metrics.json evaluation/scores.json model.safetensors provenance.json "
LAYOUT += "special_tokens_map.json tokenizer.json tokenizer_config.json vocab.txt"


def test_the_published_folder_has_the_hub_layout_and_the_receipt_its_hashes(checkout: Path) -> None:
    receipt = publish_here(checkout)
    folder = checkout / FOLDER
    assert sorted(content(folder)) == sorted([*LAYOUT.split(), "README.md", "stage_runs.json"])
    assert receipt["files"] == {name: sha256_of(folder / name) for name in LAYOUT.split()}
    assert receipt == json.loads((checkout / "reports/publish-squad.json").read_text(encoding="utf-8"))
    found = [receipt[key] for key in ("target", "folder", "commit", "url", "unchanged")]
    assert found == ["local", FOLDER, None, None, False]


def test_the_same_content_again_is_unchanged_and_rewrites_nothing(checkout: Path) -> None:
    first = publish_here(checkout)
    before = {p: p.stat().st_mtime_ns for p in (checkout / FOLDER).rglob("*")}
    second = publish_here(checkout)
    assert second == {**first, "unchanged": True}
    assert {p: p.stat().st_mtime_ns for p in (checkout / FOLDER).rglob("*")} == before


def test_a_release_names_the_run_that_made_each_stage_and_is_the_same_whoever_did(checkout: Path) -> None:
    def records(name: str, *stages: str) -> None:
        for stage in stages:
            run = {"name": name, "began": "2026-11-25T10:00:00+00:00", "host": "pod-a"}
            write_json(checkout / artifacts.stage_run_file(stage), {"run": run, "process": {"cpu_seconds": len(name)}})

    records("monday", "corpus@text", "tokenizer", "finetune@squad")
    first = publish_here(checkout)
    assert first["stages"]["finetune@squad"] == {"name": "monday", "began": "2026-11-25T10:00:00+00:00"}
    assert first["stages"]["gate@squad"] is None
    assert json.loads((checkout / FOLDER / "stage_runs.json").read_text()) == first["stages"]
    records("tuesday", "finetune@squad", "gate@squad")
    second = publish_here(checkout)
    assert [second["stages"][stage]["name"] for stage in ("tokenizer", "gate@squad")] == ["monday", "tuesday"]
    assert {**second, "stages": first["stages"]} == {**first, "unchanged": True}
    assert json.loads((checkout / FOLDER / "stage_runs.json").read_text()) == first["stages"]


def test_a_training_that_took_longer_makes_no_new_release_but_another_title_does(checkout: Path) -> None:
    measurements = checkout / "measurements/squad-finetune.json"
    measurements.parent.mkdir(exist_ok=True)
    measurements.write_text(json.dumps({"train_seconds": 10.3}))
    first = publish_here(checkout)
    card = (checkout / FOLDER / "README.md").read_text()
    assert "| squad-finetune | not recorded | 10 s |" in card
    measurements.write_text(json.dumps({"train_seconds": 99.0}))
    assert publish_here(checkout) == {**first, "unchanged": True}
    assert (checkout / FOLDER / "README.md").read_text() == card
    licensed = publish(parameter_values(params_with(license="mit")), "squad", checkout)
    assert (licensed["unchanged"], licensed["tag"] == first["tag"]) == (False, False)


def test_examples_are_published_only_where_the_parameters_say_so(checkout: Path) -> None:
    names = {"evaluation/predictions.json", "evaluation/report.html", "evaluation/mistakes.csv"}
    without = publish_here(checkout)
    assert names.isdisjoint(without["files"])
    slices = json.loads((checkout / FOLDER / "evaluation/metrics.json").read_text())["slices"]
    assert [part["by"] for part in slices] == ["question word"]
    examples = publish_here(checkout, examples=True)
    assert set(examples["files"]) == {*without["files"], *names}
    assert (examples["unchanged"], examples["tag"] != without["tag"]) == (False, True)
    published = content(checkout / FOLDER)
    for name in names:
        assert published[name] == (checkout / "evaluation/squad" / Path(name).name).read_bytes()
    metrics = json.loads((checkout / "metrics/squad.json").read_text())
    assert json.loads(published["evaluation/metrics.json"]) == metrics
    again = publish_here(checkout)
    assert again == {**without, "unchanged": False}, "the old release held more: it goes away"
    assert sorted(content(checkout / FOLDER)) == sorted([*without["files"], "README.md", "stage_runs.json"])


def test_a_model_trained_with_another_tokenizer_is_refused(checkout: Path) -> None:
    (checkout / "data/tokenizer/tokenizer.json").write_text("{}", encoding="utf-8")
    write_gate(checkout)
    with pytest.raises(PublishError, match="trained with another tokenizer"):
        publish_here(checkout)


@pytest.mark.parametrize(
    "missing", ["metrics/squad-gate.json", "metrics/squad.json", "models/squad/config.json", "data/tokenizer/vocab.txt"]
)
def test_a_missing_input_names_the_command_that_makes_it(checkout: Path, missing: str) -> None:
    (checkout / missing).unlink()
    with pytest.raises(PublishError, match="dvc repro gate@squad") as refused:
        publish_here(checkout)
    assert missing in str(refused.value)
    assert not (checkout / "published").exists()


def test_a_folder_publish_did_not_make_is_refused_and_left_alone(checkout: Path) -> None:
    (checkout / FOLDER).mkdir(parents=True)
    (checkout / FOLDER / "thesis.txt").write_text("five years", encoding="utf-8")
    with pytest.raises(PublishError, match=r"publish\.folder"):
        publish_here(checkout)
    assert content(checkout / FOLDER) == {"thesis.txt": b"five years"}


def test_a_file_somebody_put_into_a_release_is_not_thrown_away(checkout: Path) -> None:
    publish_here(checkout)
    (checkout / FOLDER / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(PublishError, match=r"notes\.txt"):
        publish_here(checkout)
    assert (checkout / FOLDER / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_a_write_that_fails_keeps_the_old_release(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_here(checkout)
    before = content(checkout / FOLDER)
    write_model(checkout, seed=11)
    replace = os.replace

    def fails_for_the_new_folder(source: Path, target: Path) -> None:
        if Path(target) == checkout / FOLDER and ".old." not in Path(source).name:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr("tasks.release.release.os.replace", fails_for_the_new_folder)
    with compared_with_newest(checkout):
        write_gate(checkout)
        with pytest.raises(OSError, match="No space left"):
            publish_here(checkout)
    assert content(checkout / FOLDER) == before
    assert sorted(p.name for p in (checkout / "published").iterdir()) == ["podium-demo", "podium-demo.releases"]


def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_a_killed_publish_left_is_cleared_away_and_a_running_ones_is_not(checkout: Path) -> None:
    publish_here(checkout)
    dead, running = (f"podium-demo.{HOST}-{pid}.partial" for pid in (dead_process(), os.getppid()))
    for name in (dead, running):
        (checkout / "published" / name).mkdir()
    publish_here(checkout)
    assert sorted(p.name for p in (checkout / "published").iterdir()) == sorted(
        ["podium-demo", "podium-demo.releases", running]
    )


def test_a_publish_killed_between_two_renames_gets_its_old_release_back(checkout: Path) -> None:
    first = publish_here(checkout)
    (checkout / FOLDER).rename(checkout / f"published/podium-demo.{HOST}-{dead_process()}.old.partial")
    assert publish_here(checkout) == {**first, "unchanged": True}
    assert sorted(p.name for p in (checkout / "published").iterdir()) == ["podium-demo", "podium-demo.releases"]


def test_the_command_publishes_and_a_rejection_ends_with_code_3_and_nothing_written(checkout: Path) -> None:
    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tasks.release.publish"]
        environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
        return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False, env=environment)

    write_gate(checkout, accepted=False)
    rejected = run()
    assert (rejected.returncode, "f1 12.30" in rejected.stderr) == (3, True)
    assert not (checkout / "published").exists()
    assert not (checkout / "reports/publish-squad.json").exists()
    write_gate(checkout)
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{FOLDER} published, release-" in done.stdout
