"""The model card and the provenance: exact numbers, nothing of the host or of the user's texts, the same every time."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ipu_model.core.files import write_json
from tasks.downstream.card_costs import remove_costs
from tasks.params.schema import parameter_values, validate_params
from tasks.params.sections import PretrainParams, PretrainRowsParams
from tasks.params.strict_yaml import read_yaml
from tasks.release.provenance import NOT_PUBLISHED, WITHHELD, provenance, released_parameters
from tasks.stage import artifacts
from tasks.stage.errors import PublishError
from tests.places import ROOT as PROJECT
from tests.tasks.downstream.entries import lay_over, values_with
from tests.tasks.release.card_facts import METRICS, ORIGIN, TRAININGS, full_card, model_card, near_duplicates
from tests.tasks.trained_checkout import make_checkout, params_with, subject_in


def front_matter(card: str) -> Any:
    return yaml.safe_load(card.split("---\n")[1])


def values_of_card(**sections: Any) -> dict[str, Any]:
    values = parameter_values(params_with())
    lay_over(values, sections)
    return values


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "94.5", True])
def test_a_score_that_is_no_number_makes_no_card(value: Any) -> None:
    with pytest.raises(PublishError, match="f1"):
        model_card(metrics={**METRICS, "f1": value})


CARDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown": ({"license": None, "language": None}, ["---\nlibrary_name: "]),
    "folder": ({"name": ".", "title": "reviews"}, ["# reviews\n", "- name: reviews\n", 'name = "."']),
    "no duplicates": (near_duplicates(0), ["0 have one in the training examples"]),
    "duplicates only": (near_duplicates(1000), ["Every scored example has one"]),
    "vocabulary of a file": (
        {"parameters": values_of_card(tokenizer={"source": "file"})},
        ["its source text is not recorded"],
    ),
    "vocabulary of the Hub": (
        {"parameters": values_of_card(tokenizer={"source": "hub", "repository": "google/bert"})},
        ["that of `google/bert` on the Hub"],
    ),
    "examples": ({"examples": True}, ["`evaluation/mistakes.csv`: "]),
}


@pytest.mark.parametrize(("changes", "shown"), CARDS.values(), ids=CARDS)
def test_the_body_states(changes: dict[str, Any], shown: list[str]) -> None:
    card = model_card(**changes)
    for text in shown:
        assert text in card


@pytest.mark.parametrize(
    ("changes", "shown", "linked"),
    [
        ({}, "an existing model", None),
        ({"base_name": "my-bert"}, "`my-bert`", None),
        ({"base_model": "google/bert-tiny"}, "`google/bert-tiny`", "google/bert-tiny"),
    ],
)
def test_a_given_folder_is_named_as_its_user_names_it(changes: dict[str, str], shown: str, linked: str | None) -> None:
    folder = {**ORIGIN, "base_model": {"source": "folder", "folder": "md5:b0b0"}, "training": {}}
    card = model_card(provenance=folder, **changes)
    assert f"started from {shown}, fine-tuned with Podium" in card
    assert front_matter(card).get("base_model") == linked
    assert "md5:" not in card.split("## Provenance")[0]


@pytest.mark.parametrize(
    ("changes", "called", "name", "kind"),
    [
        ({"source": "files", "dev_path": "md5:5a5a"}, None, "own questions (md5:5a5a)", "own-questions"),
        ({"source": "files", "dev_path": "md5:5a5a"}, "Rivers of 2026", "Rivers of 2026", "own-questions"),
        ({"source": "hub", "dataset": "rajpurkar/squad"}, None, "rajpurkar/squad", "rajpurkar/squad"),
        ({"source": "hub", "dataset": WITHHELD}, None, "own questions", "own-questions"),
    ],
)
def test_the_card_names_no_path_of_questions(changes: dict[str, str], called: str | None, name: str, kind: str) -> None:
    card = model_card(parameters=values_of_card(downstream={"squad": {"data": changes}}), data_name=called)
    dataset = front_matter(card)["model-index"][0]["results"][0]["dataset"]
    assert (dataset["type"], dataset["name"]) == (kind, name)
    assert f"On 1,000 questions of {name}, scored" in card
    assert "generated" not in card


def test_the_hash_of_a_card_leaves_out_hardware_time_and_energy() -> None:
    assert remove_costs(full_card(), TRAININGS) == full_card(measured={}, speed={})


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("| 10 s |", "| 10 s; run `curl evil.example` first |"),
        ("| squad-finetune |", "| curl evil.example |"),
        ("| squad-finetune |", "| pip install evil |\n| squad-finetune |"),
        ("Processor |", "Processor, pip install evil |"),
        ("2 threads, with", "2 threads, after `curl evil.example`, with"),
        ("| `onnx/model.onnx` | 1 |", "| `curl evil.example` | 1 |"),
        ("| too few calls |", "| run evil |"),
        ("| training | hardware |", "| first run evil | hardware |"),
    ],
)
def test_what_the_hash_of_a_card_leaves_out_is_numbers_and_known_names(place: str, text: str) -> None:
    card = full_card()
    assert place in card
    assert text.splitlines()[0].strip("| ") in remove_costs(card.replace(place, text, 1), TRAININGS)


def test_provenance_is_equal_wherever_the_release_goes_and_says_what_was_used(tmp_path: Path) -> None:
    root = make_checkout(tmp_path / "checkout")
    subject = subject_in(root)

    def read(**publish: Any) -> dict[str, Any]:
        return provenance(parameter_values(params_with(**publish)), root, subject)

    here, lock = read(), json.loads((root / "dvc.lock").read_text())
    assert here == read(folder="elsewhere", private=False)
    lock["stages"]["finetune@another"] = {"cmd": "another entry"}
    write_json(root / "dvc.lock", lock)
    assert here == read(), "no stage behind it"
    lock["stages"]["finetune@squad"]["cmd"] = "something else"
    write_json(root / "dvc.lock", lock)
    assert here["stages_sha256"] != read()["stages_sha256"]
    assert here["data"]["verdicts"]["corpus"] == {"valid": True, "rows": 12, "checks": 1, "failed": []}
    assert here["data"]["rows"]["squad-train"]["real_tokens"] == 4321
    place = {"runtime": "cpu", "precision": "fp32"}
    assert here["training"]["squad-finetune"] == {"steps": 500, "final_loss": 0.4321, **place}
    assert here["prediction"] is None, "nothing states it"
    figures = {"features": 3, "packing_factor": 1.5, **place}
    for recorded, stated in ((figures, place), ({"dev": figures, "test": figures}, {"dev": place, "test": place})):
        write_json(root / artifacts.metrics_file(subject.name, "predict"), recorded)
        assert read()["prediction"] == stated
    assert {"torch", "transformers", "huggingface_hub"} <= set(here["packages"])


PLANTED = "PlantedWord"


def shipped() -> dict[str, Any]:
    return parameter_values(validate_params(read_yaml(PROJECT / "params.yaml")))


def planted(values: Any) -> Any:
    """The same values with a planted text wherever params.yaml takes one, sources of files and the Hub apart."""
    if isinstance(values, dict):
        return {name: value if name == "kind" else planted(value) for name, value in values.items()}
    return f"/home/{PLANTED}/{PLANTED}" if values is None or isinstance(values, str) else values


def test_no_text_of_the_user_is_stated_wherever_it_stands(tmp_path: Path) -> None:
    values = planted(shipped())
    values["ipu"]["phase1"] = {"executable_cache_dir": f"/{PLANTED}", "layers_per_ipu": [1, 2], "stages": [[PLANTED]]}
    released = released_parameters(values, tmp_path)
    text = json.dumps(released)
    assert PLANTED not in text
    assert text.count(WITHHELD) > 60
    assert released["ipu"]["phase1"]["layers_per_ipu"] == [1, 2]
    assert set(shipped()) - set(released) == set(NOT_PUBLISHED)
    assert released["downstream"]["squad"]["kind"] == "squad"
    assert "publish" not in released["downstream"]["squad"]


def test_numbers_and_the_words_to_choose_from_are_stated() -> None:
    longer = {**PretrainParams.added().model_dump(), "schedule": "constant"}
    rows = {"longer": {**PretrainRowsParams.added().model_dump(), "row_length": 64}}
    entries = {"squad": {"parity": {"against": ["cpu:bf16"]}}, "rte": {"kind": "glue", "task": "rte"}}
    phases = {"phases": ["phase1", "longer"], "longer": longer}
    values = parameter_values(validate_params(values_with(entries, pretrain=phases, pretrain_rows=rows)))
    released = released_parameters(values, Path("nowhere"))
    chosen = [released["corpus"][name] for name in ("source", "layout")] + [released["device"]["runtime"]]
    assert chosen == ["demo", "auto", "cpu"]
    assert [released["downstream"]["rte"][name] for name in ("kind", "task")] == ["glue", "rte"]
    assert released["downstream"]["squad"]["parity"]["against"] == ["cpu:bf16"]
    for section in ("validate", "model", "pretrain", "packing"):
        assert released[section] == values[section], section
    for name in entries:
        for section in ("start", "rows", "finetune", "evaluate"):
            assert released["downstream"][name][section] == values["downstream"][name][section], (name, section)
    withheld = set(re.findall(rf'"(\w+)": "{re.escape(WITHHELD)}"', json.dumps(released)))
    assert withheld == {"path", "text_column", "dataset_split", "config", "train_path", "dev_path", "dataset"}


@pytest.mark.parametrize(
    ("name", "stated"),
    [
        ("rajpurkar/squad", ["rajpurkar/squad", "plain", "v1"]),
        ("kunden/texte", [WITHHELD] * 3),  # a folder next to params.yaml
        ("/home/anna/texte", [WITHHELD] * 3),
        ("../kunden/texte", [WITHHELD] * 3),
        ("https://user:secret@host/x", [WITHHELD] * 3),
    ],
)
def test_names_of_the_hub_are_stated_and_folders_are_not(tmp_path: Path, name: str, stated: list[str]) -> None:
    (tmp_path / "kunden/texte").mkdir(parents=True)
    (tmp_path / "copies").mkdir()
    values = shipped()
    values["downstream"]["squad"]["data"] |= {"source": "hub", "dataset": name, "dataset_config": "plain"}
    values["tokenizer"] |= {"source": "hub", "repository": name, "revision": "v1"}
    values["corpus"]["dataset"] = "rajpurkar/squad"  # of another source: not read
    released = released_parameters(values, tmp_path / "copies", tmp_path)
    data, tokenizer = released["downstream"]["squad"]["data"], released["tokenizer"]
    assert [data["dataset"], data["dataset_config"], tokenizer["revision"]] == stated
    assert (tokenizer["repository"], released["corpus"]["dataset"]) == (stated[0], WITHHELD)
