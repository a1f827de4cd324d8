"""What a release says of params.yaml: what the program fixes and what the Hub knows, and no text of the user's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.params.schema import parameter_values, validate_params
from tasks.params.sections import PretrainParams, PretrainRowsParams
from tasks.params.strict_yaml import read_yaml
from tasks.release.provenance import NOT_PUBLISHED, WITHHELD, released_parameters
from tests.places import ROOT as PROJECT
from tests.tasks.downstream.entries import values_with

PLANTED = "PlantedWord"


def texts(values: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every text with its place; kinds of entries aside, which are checked to be folders of the program."""
    if isinstance(values, dict):
        for name, one in values.items():
            if place[:1] == ("downstream",) and name == "kind":
                continue
            yield from texts(one, (*place, name))
    elif isinstance(values, list):
        for one in values:
            yield from texts(one, place)
    elif isinstance(values, str):
        yield place, values


def shipped() -> dict[str, Any]:
    return parameter_values(validate_params(read_yaml(PROJECT / "params.yaml")))


def planted(values: Any) -> Any:
    """The same values with a planted text wherever params.yaml takes one, sources of files and the Hub apart."""
    if isinstance(values, dict):
        return {name: one if name == "kind" else planted(one) for name, one in values.items()}
    if values is None or isinstance(values, str):
        return f"/home/{PLANTED}/{PLANTED}"
    return values


def test_no_text_of_the_user_is_stated_wherever_it_stands(tmp_path: Path) -> None:
    values = planted(shipped())
    values["ipu"]["phase1"] = {"executable_cache_dir": f"/{PLANTED}", "layers_per_ipu": [1, 2], "stages": [[PLANTED]]}
    found = released_parameters(values, tmp_path)
    said = list(texts(found))
    assert len(said) > 60
    assert {text for _, text in said} == {WITHHELD}
    assert found["ipu"]["phase1"]["layers_per_ipu"] == [1, 2]
    assert set(shipped()) - set(found) == set(NOT_PUBLISHED)
    assert found["downstream"]["squad"]["kind"] == "squad"
    assert "publish" not in found["downstream"]["squad"]


def test_numbers_and_the_words_to_choose_from_are_stated() -> None:
    longer = {**PretrainParams.added().model_dump(), "schedule": "constant"}
    rows = {"longer": {**PretrainRowsParams.added().model_dump(), "row_length": 64}}
    own = {"squad": {"parity": {"against": ["cpu:bf16"]}}, "rte": {"kind": "glue", "task": "rte"}}
    values = parameter_values(
        validate_params(
            values_with(own, pretrain={"phases": ["phase1", "longer"], "longer": longer}, pretrain_rows=rows)
        )
    )
    found = released_parameters(values, Path("nowhere"))
    assert (found["downstream"]["rte"]["kind"], found["downstream"]["rte"]["task"]) == ("glue", "rte")
    assert found["downstream"]["squad"]["parity"]["against"] == ["cpu:bf16"]
    assert (found["corpus"]["source"], found["corpus"]["layout"], found["device"]["runtime"]) == ("demo", "auto", "cpu")
    for section in ("validate", "model", "pretrain", "packing"):
        assert found[section] == values[section], section
    for name in own:
        for section in ("start", "rows", "finetune", "evaluate"):
            assert found["downstream"][name][section] == values["downstream"][name][section], (name, section)
    kept = {".".join(place) for place, text in texts(found) if text == WITHHELD}
    assert kept == {
        "corpus.path",
        "corpus.text_column",
        "corpus.dataset_split",
        "tokenizer.path",
        "pretrain_rows.phase1.path",
        "pretrain_rows.phase2.path",
        "pretrain_rows.longer.path",
        "base_model.path",
        "ipu.config",
        "downstream.squad.data.train_path",
        "downstream.squad.data.dev_path",
        "downstream.rte.data.path",
        "downstream.rte.data.dataset",
    }


def test_a_path_becomes_the_hash_that_dvc_has_of_it(tmp_path: Path) -> None:
    values = shipped()
    values["corpus"]["path"], values["downstream"]["squad"]["data"]["dev_path"] = "inputs/kunden/", "/data/fragen.json"
    dependencies = [
        {"path": "inputs/kunden", "hash": "md5", "md5": "ab12.dir", "size": 1, "nfiles": 1},
        {"path": "/data/fragen.json", "hash": "md5", "md5": "cd34", "size": 1},
        {"path": "tasks", "hash": "md5", "md5": "0000.dir"},
    ]
    lock = {"schema": "2.0", "stages": {"corpus": {"cmd": "x", "deps": dependencies}, "finetune": {"cmd": "y"}}}
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump(lock), encoding="utf-8")
    found = released_parameters(values, tmp_path)
    assert (found["corpus"]["path"], found["downstream"]["squad"]["data"]["dev_path"]) == ("md5:ab12.dir", "md5:cd34")
    assert found["downstream"]["squad"]["data"]["train_path"] == WITHHELD


@pytest.mark.parametrize(
    ("name", "stated"),
    [
        ("rajpurkar/squad", "rajpurkar/squad"),
        ("squad", "squad"),
        ("kunden/texte", WITHHELD),  # a folder next to params.yaml
        ("/home/anna/texte", WITHHELD),
        ("./texte", WITHHELD),
        ("../kunden/texte", WITHHELD),
        ("a/b/c", WITHHELD),
        ("https://user:secret@host/x", WITHHELD),
    ],
)
def test_names_of_the_hub_are_stated_and_folders_are_not(tmp_path: Path, name: str, stated: str) -> None:
    (tmp_path / "kunden/texte").mkdir(parents=True)
    (tmp_path / "copies").mkdir()
    values = shipped()
    values["downstream"]["squad"]["data"] |= {
        "source": "hub",
        "dataset": name,
        "dataset_config": "plain",
        "dataset_revision": "main",
    }
    values["tokenizer"] |= {"source": "hub", "repository": name, "revision": "v1"}
    values["corpus"]["dataset"] = "rajpurkar/squad"  # of another source: not read
    found = released_parameters(values, tmp_path / "copies", tmp_path)
    assert (found["downstream"]["squad"]["data"]["dataset"], found["tokenizer"]["repository"]) == (stated, stated)
    hub = stated != WITHHELD
    assert found["downstream"]["squad"]["data"]["dataset_config"] == ("plain" if hub else WITHHELD)
    assert found["tokenizer"]["revision"] == ("v1" if hub else WITHHELD)
    assert found["corpus"]["dataset"] == WITHHELD


@pytest.mark.parametrize("word", ["pipe", "|"])
def test_a_separator_stays_as_it_was_written(word: str) -> None:
    """dvc.lock records the text of params.yaml; publishing compares with it."""
    data = {"label_separator": word, "separator": word}
    values = values_with({"classification": {"kind": "classification", "multilabel": True, "data": data}})
    found = parameter_values(validate_params(values))["downstream"]["classification"]["data"]
    assert {name: found[name] for name in data} == data
