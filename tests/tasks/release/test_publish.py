"""Publishing to a folder: gate first, whole or not at all, the same content once, each entry by itself."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from ipu_model.core.files import HOST, sha256_of, write_json
from tasks.params.schema import parameter_values
from tasks.plan.dvc_records import LOCK
from tasks.release.publish import publish
from tasks.stage import artifacts
from tasks.stage.errors import PublishError
from tests.tasks.downstream.entries import change_parameters
from tests.tasks.release.released_checkout import compared_with_newest, publish_here
from tests.tasks.trained_checkout import PROJECT, add_entry, params_with, subject_in, write_gate, write_model

FOLDER = "published/podium-demo"


def publish_with(root: Path, examples: bool = False, **options: bool) -> dict:
    params = params_with(examples=examples)
    return publish(parameter_values(params), "squad", root, **options)


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


LAYOUT = "config.json evaluation/metrics.json evaluation/scores.json model.safetensors provenance.json "
LAYOUT += "special_tokens_map.json tokenizer.json tokenizer_config.json vocab.txt"


def test_the_published_folder_has_the_hub_layout_and_the_receipt_its_hashes(checkout: Path) -> None:
    assert "model.safetensors" in publish_with(checkout, dry_run=True)["files"]
    assert not (checkout / "published").exists()
    assert not (checkout / "reports/publish-squad.json").exists()
    receipt = publish_with(checkout)
    folder = checkout / FOLDER
    assert sorted(content(folder)) == sorted([*LAYOUT.split(), "README.md", "stage_runs.json"])
    assert receipt["files"] == {name: sha256_of(folder / name) for name in LAYOUT.split()}
    assert receipt == json.loads((checkout / "reports/publish-squad.json").read_text(encoding="utf-8"))
    found = [receipt[key] for key in ("target", "folder", "commit", "url", "unchanged")]
    assert found == ["local", FOLDER, None, None, False]
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    assert publish_with(checkout) == {**receipt, "unchanged": True}
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before


def test_a_release_names_the_run_that_made_each_stage_and_is_the_same_whoever_did(checkout: Path) -> None:
    def records(name: str, *stages: str) -> None:
        for stage in stages:
            run = {"name": name, "began": "2026-11-25T10:00:00+00:00", "host": "pod-a"}
            write_json(checkout / artifacts.stage_run_file(stage), {"run": run, "process": {"cpu_seconds": len(name)}})

    records("monday", "corpus@text", "tokenizer", "finetune@squad")
    first = publish_with(checkout)
    assert first["stages"]["finetune@squad"] == {"name": "monday", "began": "2026-11-25T10:00:00+00:00"}
    assert first["stages"]["gate@squad"] is None
    assert json.loads((checkout / FOLDER / "stage_runs.json").read_text()) == first["stages"]
    records("tuesday", "finetune@squad", "gate@squad")
    second = publish_with(checkout)
    assert [second["stages"][stage]["name"] for stage in ("tokenizer", "gate@squad")] == ["monday", "tuesday"]
    assert {**second, "stages": first["stages"]} == {**first, "unchanged": True}
    assert json.loads((checkout / FOLDER / "stage_runs.json").read_text()) == first["stages"]


def test_a_training_that_took_longer_makes_no_new_release_but_another_title_does(checkout: Path) -> None:
    measurements = checkout / "measurements/squad-finetune.json"
    measurements.parent.mkdir(exist_ok=True)
    measurements.write_text(json.dumps({"train_seconds": 10.3}))
    first = publish_with(checkout)
    card = (checkout / FOLDER / "README.md").read_text()
    assert "| squad-finetune | not recorded | 10 s |" in card
    measurements.write_text(json.dumps({"train_seconds": 99.0}))
    assert publish_with(checkout) == {**first, "unchanged": True}
    assert (checkout / FOLDER / "README.md").read_text() == card
    licensed = publish(parameter_values(params_with(license="mit")), "squad", checkout)
    assert (licensed["unchanged"], licensed["tag"] == first["tag"]) == (False, False)


def test_examples_are_published_only_where_the_parameters_say_so(checkout: Path) -> None:
    names = {"evaluation/predictions.json", "evaluation/report.html", "evaluation/mistakes.csv"}
    without = publish_with(checkout)
    assert names.isdisjoint(without["files"])
    slices = json.loads((checkout / FOLDER / "evaluation/metrics.json").read_text())["slices"]
    assert [part["by"] for part in slices] == ["question word"]
    examples = publish_with(checkout, examples=True)
    assert set(examples["files"]) == {*without["files"], *names}
    assert (examples["unchanged"], examples["tag"] != without["tag"]) == (False, True)
    published = content(checkout / FOLDER)
    for name in names:
        assert published[name] == (checkout / "evaluation/squad" / Path(name).name).read_bytes()
    metrics = json.loads((checkout / "metrics/squad.json").read_text())
    assert json.loads(published["evaluation/metrics.json"]) == metrics
    again = publish_with(checkout)
    assert again == {**without, "unchanged": False}, "the old release held more: it goes away"
    assert sorted(content(checkout / FOLDER)) == sorted([*without["files"], "README.md", "stage_runs.json"])


def test_a_model_trained_with_another_tokenizer_is_refused(checkout: Path) -> None:
    (checkout / "data/tokenizer/tokenizer.json").write_text("{}", encoding="utf-8")
    write_gate(checkout)
    with pytest.raises(PublishError, match="trained with another tokenizer"):
        publish_with(checkout)


@pytest.mark.parametrize(
    "missing", ["metrics/squad-gate.json", "metrics/squad.json", "models/squad/config.json", "data/tokenizer/vocab.txt"]
)
def test_a_missing_input_names_the_command_that_makes_it(checkout: Path, missing: str) -> None:
    (checkout / missing).unlink()
    with pytest.raises(PublishError, match="dvc repro gate@squad") as refused:
        publish_with(checkout)
    assert missing in str(refused.value)
    assert not (checkout / "published").exists()


def test_a_folder_publish_did_not_make_is_refused_and_left_alone(checkout: Path) -> None:
    (checkout / FOLDER).mkdir(parents=True)
    (checkout / FOLDER / "thesis.txt").write_text("five years", encoding="utf-8")
    with pytest.raises(PublishError, match=r"publish\.folder"):
        publish_with(checkout)
    assert content(checkout / FOLDER) == {"thesis.txt": b"five years"}
    shutil.rmtree(checkout / FOLDER)
    publish_with(checkout)
    (checkout / FOLDER / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(PublishError, match=r"notes\.txt"):
        publish_with(checkout)
    assert content(checkout / FOLDER)["notes.txt"] == b"mine"


def test_a_write_that_fails_keeps_the_old_release(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_with(checkout)
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
            publish_with(checkout)
    assert content(checkout / FOLDER) == before
    assert sorted(p.name for p in (checkout / "published").iterdir()) == ["podium-demo", "podium-demo.releases"]


def test_what_a_killed_publish_left_is_cleared_away_and_a_running_ones_is_not(checkout: Path) -> None:
    first = publish_with(checkout)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    dead, running = (f"podium-demo.{HOST}-{pid}" for pid in (process.pid, os.getppid()))
    for name in (dead, running):
        (checkout / f"published/{name}.partial").mkdir()
    (checkout / FOLDER).rename(checkout / f"published/{dead}.old.partial")  # between two renames
    assert publish_with(checkout) == {**first, "unchanged": True}
    assert sorted(p.name for p in (checkout / "published").iterdir()) == sorted(
        ["podium-demo", "podium-demo.releases", f"{running}.partial"]
    )


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


OTHER = "squad-long"


@pytest.fixture
def two_entries(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "checkout"))


@pytest.fixture(scope="module")
def made(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with a second entry."""
    root = Path(shutil.copytree(trained, tmp_path_factory.mktemp("made") / "checkout"))
    return add_entry(root, OTHER, finetune={"epochs": 4, "seed": 77})


def refusal(root: Path, name: str = "squad") -> str:
    with pytest.raises(PublishError, match="[Nn]othing was published") as refused:
        publish_here(root, name)
    assert not (root / "published").exists()
    assert not (root / artifacts.receipt_file(name)).exists()
    return str(refused.value)


def test_two_recipes_on_one_pretrained_model_have_releases_of_their_own(two_entries: Path) -> None:
    receipts = {name: publish_here(two_entries, name) for name in ("squad", OTHER)}
    assert {name: one["folder"] for name, one in receipts.items()} == {
        "squad": "published/podium-demo",
        OTHER: f"published/{OTHER}",
    }
    assert receipts["squad"]["tag"] != receipts[OTHER]["tag"]
    for name, other, seed in (("squad", OTHER, 5), (OTHER, "squad", 77)):
        folder = two_entries / receipts[name]["folder"]
        assert sha256_of(folder / "model.safetensors") == sha256_of(two_entries / f"models/{name}/model.safetensors")
        assert json.loads((two_entries / f"reports/publish-{name}.json").read_text()) == receipts[name]
        stated = json.loads((folder / "provenance.json").read_text())
        assert list(stated["parameters"]["downstream"]) == [name]
        assert stated["parameters"]["downstream"][name]["finetune"]["seed"] == seed
        assert set(stated["training"]) == {"pretrain-phase1", "pretrain-phase2", f"{name}-finetune"}
        assert set(stated["data"]["verdicts"]) == {"corpus", "phase1", "phase2", name, f"{name}-rows"}
        text = "".join(path.read_text() for path in folder.rglob("*") if path.suffix in (".md", ".json"))
        assert f"{other}-finetune" not in text


@pytest.mark.parametrize(
    ("key", "value", "stage", "before"),
    [
        ("corpus.seed", 9, "corpus@text", 1),
        ("validate.min_documents", 1, "validate@corpus", 10),
        ("packing", False, "pretrain_rows@phase1", True),
        ("model.layer_norm_eps", 1e-6, "pretrain@phase1", 1e-12),
        ("downstream.squad.finetune.max_grad_norm", None, "finetune@squad", 1.0),
        ("downstream.squad.gate.confidence", 0.9, "gate@squad", 0.95),
    ],
)
def test_changed_parameters_of_a_stage_are_named(
    two_entries: Path, key: str, value: Any, stage: str, before: Any
) -> None:
    *sections, name = key.split(".")
    changes: dict[str, Any] = {name: value}
    for section in reversed(sections):
        changes = {section: changes}
    change_parameters(two_entries, changes)
    message = refusal(two_entries)
    assert f"{key} is {value}, but stage {stage} ran with {before}" in message
    assert "`dvc repro gate@squad`" in message


@pytest.mark.parametrize("stage", ["corpus@text", "validate@phase2", "gate@squad"])
def test_a_stage_behind_the_gate_that_has_not_run_is_named(two_entries: Path, stage: str) -> None:
    lock = json.loads((two_entries / LOCK).read_text())
    del lock["stages"][stage]
    write_json(two_entries / LOCK, lock)
    assert f"stage {stage} has not run. Run" in refusal(two_entries)


def test_parameters_that_no_stage_behind_the_gate_has_may_change(two_entries: Path) -> None:
    change_parameters(
        two_entries,
        {
            "downstream": {OTHER: {"finetune": {"epochs": 1}}, "squad": {"publish": {"folder": "published/elsewhere"}}},
            "checkpoint": {"remote": "elsewhere"},
            "tracking": {"project": "another"},
            "publish": {"language": "de"},
            "pretrain": {"checkpoint_every_updates": 7},
        },
    )
    assert f"downstream.{OTHER}.finetune.epochs is 1" in refusal(two_entries, OTHER)
    assert publish_here(two_entries)["folder"] == "published/elsewhere"


def test_a_phase_that_an_entry_does_not_rest_on_may_have_any_parameters_and_need_not_run(two_entries: Path) -> None:
    change_parameters(two_entries, {"downstream": {"squad": {"start": "phase1"}}})
    write_gate(two_entries)
    change_parameters(two_entries, {"pretrain": {"phase2": {"steps": 7}}})
    lock = json.loads((two_entries / LOCK).read_text())
    write_json(
        two_entries / LOCK, {"stages": {name: one for name, one in lock["stages"].items() if "phase2" not in name}}
    )
    assert publish_here(two_entries)["files"]
    card = (two_entries / "published/podium-demo/README.md").read_text()
    assert "pre-trained in one phase and fine-tuned with Podium" in card
    with pytest.raises(PublishError, match="stage validate@phase2 has not run"):
        publish_here(two_entries, OTHER)


ENGLISH = {"license": "mit", "language": "en", "name": "google/bert-tiny"}
BASE = {"source": "folder", "path": "given"}


@pytest.mark.parametrize(
    ("stated", "origin", "expected"),
    [
        ({}, ENGLISH, ("mit", "en", "google/bert-tiny")),
        ({}, {}, (None, None, None)),
        ({}, {**ENGLISH, "language": ["am", "ti"]}, ("mit", ["am", "ti"], "google/bert-tiny")),
        ({"license": "cc-by-4.0", "base_model": "user/mine"}, ENGLISH, ("cc-by-4.0", "en", "user/mine")),
    ],
)
def test_a_card_states_what_the_user_or_the_base_models_files_state(
    two_entries: Path, stated: dict[str, str], origin: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    write_json(two_entries / artifacts.BASE_MODEL / "base_model.json", {**BASE, "origin": origin})
    publish = {"license": None, "language": None, **stated}
    change_parameters(two_entries, {"pretrain": {"enabled": False}, "base_model": BASE, "publish": publish})
    write_gate(two_entries)
    publish_here(two_entries)
    data = ModelCard.load(two_entries / "published/podium-demo/README.md").data
    assert (data.get("license"), data.get("language"), data.get("base_model")) == expected
    assert data.model_name == "podium-demo"
    change_parameters(two_entries, {"downstream": {"squad": {"publish": {"folder": "anna/secret"}}}})
    publish_here(two_entries)
    assert ModelCard.load(two_entries / "anna/secret/README.md").data.model_name == "squad", "a path is not told"


def test_the_hub_gets_no_release_without_licence_and_language(two_entries: Path) -> None:
    hub = {"target": "hub", "license": None, "language": None}
    own = {name: {"publish": {"repository": f"user/{name}"}} for name in ("squad", OTHER)}
    change_parameters(two_entries, {"publish": hub, "downstream": own})
    write_gate(two_entries)
    assert "--set publish.license=apache-2.0 --set publish.language=en" in refusal(two_entries)


@pytest.mark.parametrize("base", [False, True])
def test_a_release_without_pretraining_states_no_phase_and_binds_its_base_model(two_entries: Path, base: bool) -> None:
    record = two_entries / artifacts.BASE_MODEL / "base_model.json"
    write_json(record, {"source": "hub", "repository": "google/bert-tiny", "commit": "c" * 40})
    given = {"source": "hub", "repository": "google/bert-tiny"} if base else {}
    change_parameters(two_entries, {"pretrain": {"enabled": False}, "base_model": given})
    write_gate(two_entries)
    assert (subject_in(two_entries).base_model is not None) == base
    assert publish_here(two_entries)["files"]
    folder = two_entries / "published/podium-demo"
    stated, card = json.loads((folder / "provenance.json").read_text()), (folder / "README.md").read_text()
    assert set(stated["training"]) == {"squad-finetune"}
    assert (stated["base_model"] or {}).get("repository") == ("google/bert-tiny" if base else None)
    assert ("started from `google/bert-tiny`" if base else "from random weights, without pre-training") in card
    shutil.rmtree(two_entries / "published")
    (two_entries / artifacts.receipt_file("squad")).unlink()
    write_json(record, {"source": "none"})
    if base:
        assert "models/base/base_model.json has SHA-256" in refusal(two_entries)
    else:
        assert publish_here(two_entries)["files"], "what is not behind it may change"


@pytest.mark.soak
def test_the_code_of_a_card_loads_the_release_and_answers(checkout: Path) -> None:
    publish_with(checkout)
    [code] = re.findall("```python\n(.*?)```", (checkout / FOLDER / "README.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=checkout / FOLDER, capture_output=True, text=True)
    assert done.stdout.strip(), done.stderr
    assert done.stdout.strip() in "The river rises in the northern hills and ends in a lake."
