"""Publishing to a folder: gate first, whole or not at all, the same content once, each entry by itself."""

import copy
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

from ipu_model.core.files import HOST, read_json, sha256_of, write_json
from tasks.params.strict_yaml import read_yaml
from tasks.plan.dvc_records import LOCK
from tasks.release import publish
from tasks.stage import artifacts
from tasks.stage.errors import GateRejected, PublishError
from tests.tasks.downstream.entries import change_parameters, lay_over, write_parameters
from tests.tasks.downstream.texts.glue_checkout import run_stage
from tests.tasks.release.released_checkout import publish_here, release
from tests.tasks.trained_checkout import subject_in, write_entry, write_gate

FOLDER = "published/podium-demo"
LAYOUT = "config.json evaluation/metrics.json evaluation/scores.json model.safetensors provenance.json "
LAYOUT += "special_tokens_map.json tokenizer.json tokenizer_config.json vocab.txt"


def publish_with(root: Path, **how: Any) -> dict[str, Any]:
    change_parameters(root, {"publish": how})
    return publish_here(root)


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def require_nothing_published(root: Path, name: str = "squad") -> None:
    assert not (root / "published").exists()
    assert not (root / artifacts.receipt_file(name)).exists()


def test_the_published_folder_has_the_hub_layout_and_the_receipt_its_hashes(checkout: Path) -> None:
    assert "model.safetensors" in publish_here(checkout, dry_run=True)["files"]
    require_nothing_published(checkout)
    receipt = publish_here(checkout)
    folder = checkout / FOLDER
    assert sorted(content(folder)) == sorted([*LAYOUT.split(), "README.md", "stage_runs.json"])
    assert receipt["files"] == {name: sha256_of(folder / name) for name in LAYOUT.split()}
    assert receipt == read_json(checkout / "reports/publish-squad.json")
    stated = [receipt[key] for key in ("target", "folder", "commit", "url", "unchanged")]
    assert stated == ["local", FOLDER, None, None, False]
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    assert publish_here(checkout) == {**receipt, "unchanged": True}
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before


def test_a_release_names_the_run_that_made_each_stage_and_is_the_same_whoever_did(checkout: Path) -> None:
    def records(name: str, *stages: str) -> None:
        for stage in stages:
            run = {"name": name, "began": "2026-11-25T10:00:00+00:00", "host": "pod-a"}
            write_json(checkout / artifacts.stage_run_file(stage), {"run": run, "process": {"cpu_seconds": len(name)}})

    records("monday", "corpus@text", "tokenizer", "finetune@squad")
    first = publish_here(checkout)
    assert first["stages"]["finetune@squad"] == {"name": "monday", "began": "2026-11-25T10:00:00+00:00"}
    assert first["stages"]["gate@squad"] is None
    records("tuesday", "finetune@squad", "gate@squad")
    second = publish_here(checkout)
    assert [second["stages"][stage]["name"] for stage in ("tokenizer", "gate@squad")] == ["monday", "tuesday"]
    assert {**second, "stages": first["stages"]} == {**first, "unchanged": True}
    assert read_json(checkout / FOLDER / "stage_runs.json") == first["stages"]


def test_a_training_that_took_longer_makes_no_new_release_but_another_title_does(checkout: Path) -> None:
    measurements = checkout / "measurements/squad-finetune.json"
    write_json(measurements, {"train_seconds": 10.3})
    first = publish_here(checkout)
    card = (checkout / FOLDER / "README.md").read_text()
    assert "| squad-finetune | not recorded | 10 s |" in card
    write_json(measurements, {"train_seconds": 99.0})
    assert publish_here(checkout) == {**first, "unchanged": True}
    assert (checkout / FOLDER / "README.md").read_text() == card
    licensed = publish_with(checkout, license="mit")
    assert (licensed["unchanged"], licensed["tag"] == first["tag"]) == (False, False)


def test_examples_are_published_only_where_the_parameters_say_so(checkout: Path) -> None:
    names = {"evaluation/predictions.json", "evaluation/report.html", "evaluation/mistakes.csv"}
    without = publish_here(checkout)
    assert names.isdisjoint(without["files"])
    slices = read_json(checkout / FOLDER / "evaluation/metrics.json")["slices"]
    assert [part["by"] for part in slices] == ["question word"]
    examples = publish_with(checkout, examples=True)
    assert set(examples["files"]) == {*without["files"], *names}
    assert (examples["unchanged"], examples["tag"] != without["tag"]) == (False, True)
    for name in names:
        assert (checkout / FOLDER / name).read_bytes() == (checkout / "evaluation/squad" / Path(name).name).read_bytes()
    assert read_json(checkout / FOLDER / "evaluation/metrics.json") == read_json(checkout / "metrics/squad.json")
    assert publish_with(checkout, examples=False) == {**without, "unchanged": False}, "the old release held more"
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
    with pytest.raises(PublishError, match=rf"(?s){re.escape(missing)}.*dvc repro gate@squad"):
        publish_here(checkout)
    require_nothing_published(checkout)


def test_a_folder_publish_did_not_make_is_refused_and_left_alone(checkout: Path) -> None:
    (checkout / FOLDER).mkdir(parents=True)
    (checkout / FOLDER / "thesis.txt").write_text("five years", encoding="utf-8")
    with pytest.raises(PublishError, match=r"publish\.folder"):
        publish_here(checkout)
    assert content(checkout / FOLDER) == {"thesis.txt": b"five years"}
    shutil.rmtree(checkout / FOLDER)
    publish_here(checkout)
    (checkout / FOLDER / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(PublishError, match=r"notes\.txt"):
        publish_here(checkout)
    assert content(checkout / FOLDER)["notes.txt"] == b"mine"


def test_a_write_that_fails_keeps_the_old_release(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_here(checkout)
    before = content(checkout / FOLDER)
    replace = os.replace

    def fails_for_the_new_folder(source: Path, target: Path) -> None:
        if Path(target) == checkout / FOLDER and ".old." not in Path(source).name:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr("tasks.release.release.os.replace", fails_for_the_new_folder)
    with pytest.raises(OSError, match="No space left"):
        release(checkout, seed=11)
    assert content(checkout / FOLDER) == before
    assert sorted(p.name for p in (checkout / "published").iterdir()) == ["podium-demo", "podium-demo.releases"]


def test_what_a_killed_publish_left_is_cleared_away_and_a_running_ones_is_not(checkout: Path) -> None:
    first = publish_here(checkout)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    dead, running = (f"podium-demo.{HOST}-{pid}" for pid in (process.pid, os.getppid()))
    for name in (dead, running):
        (checkout / f"published/{name}.partial").mkdir()
    (checkout / FOLDER).rename(checkout / f"published/{dead}.old.partial")  # between two renames
    assert publish_here(checkout) == {**first, "unchanged": True}
    left = {p.name for p in (checkout / "published").iterdir()}
    assert left == {"podium-demo", "podium-demo.releases", f"{running}.partial"}


def test_the_command_publishes_and_a_rejected_model_is_not_written(
    checkout: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(checkout)
    write_gate(checkout, accepted=False)
    with pytest.raises(GateRejected, match=r"f1 12\.30"):
        run_stage(publish)
    require_nothing_published(checkout)
    write_gate(checkout)
    run_stage(publish)
    assert f"{FOLDER} published, release-" in capsys.readouterr().out


OTHER = "squad-long"


@pytest.fixture
def two_entries(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "checkout"))


@pytest.fixture(scope="module")
def made(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with a second entry, which differs in its training and has a model of its own."""
    root = Path(shutil.copytree(trained, tmp_path_factory.mktemp("made") / "checkout"))
    values = read_yaml(root / artifacts.PARAMS)
    other = values["downstream"][OTHER] = copy.deepcopy(values["downstream"]["squad"])
    lay_over(other, {"publish": {"folder": f"published/{OTHER}"}, "finetune": {"epochs": 4, "seed": 77}})
    write_parameters(root, values)
    write_entry(root, OTHER, seed=1)
    write_gate(root, name=OTHER)
    return root


def refusal(root: Path, name: str = "squad") -> str:
    with pytest.raises(PublishError, match="[Nn]othing was published") as refused:
        publish_here(root, name)
    require_nothing_published(root, name)
    return str(refused.value)


def without_stages(root: Path, part: str) -> None:
    stages = read_json(root / LOCK)["stages"]
    write_json(root / LOCK, {"stages": {name: stage for name, stage in stages.items() if part not in name}})


def test_two_recipes_on_one_pretrained_model_have_releases_of_their_own(two_entries: Path) -> None:
    receipts = {name: publish_here(two_entries, name) for name in ("squad", OTHER)}
    folders = [receipt["folder"] for receipt in receipts.values()]
    assert folders == ["published/podium-demo", f"published/{OTHER}"]
    assert receipts["squad"]["tag"] != receipts[OTHER]["tag"]
    for name, other, seed in (("squad", OTHER, 5), (OTHER, "squad", 77)):
        folder = two_entries / receipts[name]["folder"]
        assert sha256_of(folder / "model.safetensors") == sha256_of(two_entries / f"models/{name}/model.safetensors")
        assert read_json(two_entries / f"reports/publish-{name}.json") == receipts[name]
        stated = read_json(folder / "provenance.json")
        assert list(stated["parameters"]["downstream"]) == [name]
        assert stated["parameters"]["downstream"][name]["finetune"]["seed"] == seed
        assert set(stated["training"]) == {"pretrain-phase1", "pretrain-phase2", f"{name}-finetune"}
        assert set(stated["data"]["verdicts"]) == {"corpus", "phase1", "phase2", name, f"{name}-rows"}
        assert f"{other}-finetune" not in (folder / "README.md").read_text() + json.dumps(stated)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"corpus": {"seed": 9}}, "corpus.seed is 9, but stage corpus@text ran with 1"),
        ({"model": {"layer_norm_eps": 1e-6}}, "layer_norm_eps is 1e-06, but stage pretrain@phase1 ran with 1e-12"),
        (
            {"downstream": {"squad": {"finetune": {"max_grad_norm": None}}}},
            "downstream.squad.finetune.max_grad_norm is None, but stage finetune@squad ran with 1.0",
        ),
        (
            {"downstream": {"squad": {"gate": {"confidence": 0.9}}}},
            "downstream.squad.gate.confidence is 0.9, but stage gate@squad ran with 0.95",
        ),
    ],
)
def test_changed_parameters_of_a_stage_are_named(two_entries: Path, changes: dict[str, Any], words: str) -> None:
    change_parameters(two_entries, changes)
    message = refusal(two_entries)
    assert words in message
    assert "`dvc repro gate@squad`" in message


@pytest.mark.parametrize("stage", ["corpus@text", "validate@phase2", "gate@squad"])
def test_a_stage_behind_the_gate_that_has_not_run_is_named(two_entries: Path, stage: str) -> None:
    without_stages(two_entries, stage)
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
    without_stages(two_entries, "phase2")
    publish_here(two_entries)
    assert "pre-trained in one phase and fine-tuned with Podium" in (two_entries / FOLDER / "README.md").read_text()
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
    how = {"license": None, "language": None, **stated}
    change_parameters(two_entries, {"pretrain": {"enabled": False}, "base_model": BASE, "publish": how})
    write_gate(two_entries)
    for folder, name in (("published/podium-demo", "podium-demo"), ("anna/secret", "squad")):  # a path is not told
        change_parameters(two_entries, {"downstream": {"squad": {"publish": {"folder": folder}}}})
        publish_here(two_entries)
        data = ModelCard.load(two_entries / folder / "README.md").data
        assert (data.get("license"), data.get("language"), data.get("base_model")) == expected
        assert data.model_name == name


def test_the_hub_gets_no_release_without_licence_and_language(two_entries: Path) -> None:
    hub = {"target": "hub", "license": None, "language": None}
    entries = {name: {"publish": {"repository": f"user/{name}"}} for name in ("squad", OTHER)}
    change_parameters(two_entries, {"publish": hub, "downstream": entries})
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
    publish_here(two_entries)
    folder = two_entries / FOLDER
    stated, card = read_json(folder / "provenance.json"), (folder / "README.md").read_text()
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
    publish_here(checkout)
    [code] = re.findall("```python\n(.*?)```", (checkout / FOLDER / "README.md").read_text(), re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=checkout / FOLDER, capture_output=True, text=True)
    assert done.stdout.strip(), done.stderr
    assert done.stdout.strip() in "The river rises in the northern hills and ends in a lake."
