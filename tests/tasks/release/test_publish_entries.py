"""Several entries side by side: each has a release of its own, of the parameters that its own stages ran with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from ipu_model.core.files import sha256_of, write_json
from tasks.plan.dvc_records import LOCK
from tasks.stage import artifacts
from tasks.stage.errors import PublishError
from tests.tasks.downstream.entries import change_parameters
from tests.tasks.release.released_checkout import publish_here
from tests.tasks.trained_checkout import add_entry, make_glue_checkout, subject_in, write_gate

OTHER = "squad-long"


@pytest.fixture
def checkout(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "checkout"))


@pytest.fixture(scope="module")
def made(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with a second entry."""
    root = Path(shutil.copytree(trained, tmp_path_factory.mktemp("made") / "checkout"))
    return add_entry(root, OTHER, finetune={"epochs": 4, "seed": 77})


def refusal(root: Path, name: str = "squad") -> str:
    """What publishing says, which must not succeed."""
    with pytest.raises(PublishError, match="[Nn]othing was published") as refused:
        publish_here(root, name)
    assert not (root / "published").exists()
    assert not (root / artifacts.receipt_file(name)).exists()
    return str(refused.value)


def test_two_recipes_on_one_pretrained_model_have_releases_of_their_own(checkout: Path) -> None:
    receipts = {name: publish_here(checkout, name) for name in ("squad", OTHER)}
    assert {name: one["folder"] for name, one in receipts.items()} == {
        "squad": "published/podium-demo",
        OTHER: f"published/{OTHER}",
    }
    assert receipts["squad"]["tag"] != receipts[OTHER]["tag"]
    for name, other, seed in (("squad", OTHER, 5), (OTHER, "squad", 77)):
        folder = checkout / receipts[name]["folder"]
        assert sha256_of(folder / "model.safetensors") == sha256_of(checkout / f"models/{name}/model.safetensors")
        assert json.loads((checkout / f"reports/publish-{name}.json").read_text()) == receipts[name]
        stated = json.loads((folder / "provenance.json").read_text())
        assert list(stated["parameters"]["downstream"]) == [name]
        assert stated["parameters"]["downstream"][name]["finetune"]["seed"] == seed
        assert set(stated["training"]) == {"pretrain-phase1", "pretrain-phase2", f"{name}-finetune"}
        assert set(stated["data"]["verdicts"]) == {"corpus", "phase1", "phase2", name, f"{name}-rows"}
        text = "".join(path.read_text() for path in folder.rglob("*") if path.suffix in (".md", ".json"))
        assert f"{other}-finetune" not in text


def test_what_is_changed_in_one_entry_is_refused_there_and_nowhere_else(checkout: Path) -> None:
    with (checkout / artifacts.model_folder(OTHER) / "model.safetensors").open("ab") as stream:
        stream.write(b" ")
    assert f"models/{OTHER}/model.safetensors has SHA-256" in refusal(checkout, OTHER)
    assert publish_here(checkout)["folder"] == "published/podium-demo"


@pytest.mark.parametrize(
    ("key", "value", "stage", "before"),
    [
        ("corpus.seed", 9, "corpus@text", 1),
        ("tokenizer.vocabulary_size", 900, "tokenizer", 2000),
        ("validate.min_documents", 1, "validate@corpus", 10),
        ("packing", False, "pretrain_rows@phase1", True),
        ("pretrain.phase1.steps", 7, "pretrain@phase1", 600),
        ("model.layer_norm_eps", 1e-6, "pretrain@phase1", 1e-12),
        ("downstream.squad.data.demo_dev", 3, "examples@squad", 1000),
        ("downstream.squad.finetune.max_grad_norm", None, "finetune@squad", 1.0),
        ("downstream.squad.gate.confidence", 0.9, "gate@squad", 0.95),
    ],
)
def test_parameters_of_a_stage_behind_the_gate_that_differ_are_named(
    checkout: Path, key: str, value: Any, stage: str, before: Any
) -> None:
    *sections, name = key.split(".")
    changes: dict[str, Any] = {name: value}
    for section in reversed(sections):
        changes = {section: changes}
    change_parameters(checkout, changes)
    message = refusal(checkout)
    assert f"{key} is {value}, but stage {stage} ran with {before}" in message
    assert "`dvc repro gate@squad`" in message


def test_the_task_of_a_glue_entry_is_a_parameter_of_its_stages(tmp_path: Path) -> None:
    root = make_glue_checkout(tmp_path / "checkout")
    change_parameters(root, {"downstream": {"glue-sst2": {"task": "cola"}}})
    assert "downstream.glue-sst2.task is 'cola'" in refusal(root, "glue-sst2")


@pytest.mark.parametrize("stage", ["corpus@text", "tokenizer", "validate@phase2", "finetune@squad", "gate@squad"])
def test_a_stage_behind_the_gate_that_has_not_run_is_named(checkout: Path, stage: str) -> None:
    lock = json.loads((checkout / LOCK).read_text())
    del lock["stages"][stage]
    write_json(checkout / LOCK, lock)
    assert f"stage {stage} has not run. Run" in refusal(checkout)


def test_parameters_that_no_stage_behind_the_gate_has_may_change(checkout: Path) -> None:
    change_parameters(
        checkout,
        {
            "downstream": {OTHER: {"finetune": {"epochs": 1}}, "squad": {"publish": {"folder": "published/elsewhere"}}},
            "checkpoint": {"remote": "elsewhere"},
            "tracking": {"project": "another"},
            "publish": {"language": "de"},
            "pretrain": {"checkpoint_every_updates": 7},
        },
    )
    assert f"downstream.{OTHER}.finetune.epochs is 1" in refusal(checkout, OTHER)
    assert publish_here(checkout)["folder"] == "published/elsewhere"


def test_a_phase_that_an_entry_does_not_rest_on_may_have_any_parameters_and_need_not_run(checkout: Path) -> None:
    change_parameters(checkout, {"downstream": {"squad": {"start": "phase1"}}})
    write_gate(checkout)
    change_parameters(checkout, {"pretrain": {"phase2": {"steps": 7}}})
    lock = json.loads((checkout / LOCK).read_text())
    write_json(checkout / LOCK, {"stages": {name: one for name, one in lock["stages"].items() if "phase2" not in name}})
    assert publish_here(checkout)["files"]
    card = (checkout / "published/podium-demo/README.md").read_text()
    assert "pre-trained in one phase and fine-tuned with Podium" in card
    with pytest.raises(PublishError, match="stage validate@phase2 has not run"):
        publish_here(checkout, OTHER)


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
    checkout: Path, stated: dict[str, str], origin: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    write_json(checkout / artifacts.BASE_MODEL / "base_model.json", {**BASE, "origin": origin})
    publish = {"license": None, "language": None, **stated}
    change_parameters(checkout, {"pretrain": {"enabled": False}, "base_model": BASE, "publish": publish})
    write_gate(checkout)
    publish_here(checkout)
    data = ModelCard.load(checkout / "published/podium-demo/README.md").data
    assert (data.get("license"), data.get("language"), data.get("base_model")) == expected
    assert data.model_name == "podium-demo"
    for folder, title in (("anna/secret", "squad"), ("../published/reviews", "reviews")):
        change_parameters(checkout, {"downstream": {"squad": {"publish": {"folder": folder}}}})
        publish_here(checkout)
        assert ModelCard.load(checkout / folder / "README.md").data.model_name == title


def test_the_hub_gets_no_release_without_licence_and_language(checkout: Path) -> None:
    hub = {"target": "hub", "license": None, "language": None}
    own = {name: {"publish": {"repository": f"user/{name}"}} for name in ("squad", OTHER)}
    change_parameters(checkout, {"publish": hub, "downstream": own})
    write_gate(checkout)
    assert "--set publish.license=apache-2.0 --set publish.language=en" in refusal(checkout)


@pytest.mark.parametrize("base", [False, True])
def test_a_release_without_pretraining_states_no_phase_and_binds_its_base_model(checkout: Path, base: bool) -> None:
    record = checkout / artifacts.BASE_MODEL / "base_model.json"
    write_json(record, {"source": "hub", "repository": "google/bert-tiny", "commit": "c" * 40})
    given = {"source": "hub", "repository": "google/bert-tiny"} if base else {}
    change_parameters(checkout, {"pretrain": {"enabled": False}, "base_model": given})
    write_gate(checkout)
    assert (subject_in(checkout).base_model is not None) == base
    assert publish_here(checkout)["files"]
    folder = checkout / "published/podium-demo"
    stated, card = json.loads((folder / "provenance.json").read_text()), (folder / "README.md").read_text()
    assert set(stated["training"]) == {"squad-finetune"}
    assert (stated["base_model"] or {}).get("repository") == ("google/bert-tiny" if base else None)
    assert ("started from `google/bert-tiny`" if base else "from random weights, without pre-training") in card
    shutil.rmtree(checkout / "published")
    (checkout / artifacts.receipt_file("squad")).unlink()
    write_json(record, {"source": "none"})
    if base:
        assert "models/base/base_model.json has SHA-256" in refusal(checkout)
    else:
        assert publish_here(checkout)["files"], "what is not behind it may change"
