"""The model card and the provenance: exact numbers, nothing of the host or of the user's texts, the same every time."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.downstream.card_costs import remove_costs
from tasks.params.schema import parameter_values, validate_params
from tasks.params.sections import PretrainParams, PretrainRowsParams
from tasks.params.strict_yaml import read_yaml
from tasks.release.provenance import NOT_PUBLISHED, WITHHELD, provenance, released_parameters
from tasks.stage import artifacts
from tasks.stage.errors import PublishError
from tests.places import ROOT as PROJECT
from tests.tasks.downstream.entries import values_with
from tests.tasks.release.card_facts import ORIGIN, facts, model_card
from tests.tasks.trained_checkout import METRICS, make_checkout, params_with, subject_in


def front_matter(card: str) -> Any:
    return yaml.safe_load(card.split("---\n")[1])


def test_the_front_matter_says_what_the_hub_shows() -> None:
    found = front_matter(model_card(facts()))
    [index] = found.pop("model-index")
    assert found == {
        "language": "en",
        "license": "apache-2.0",
        "library_name": "transformers",
        "pipeline_tag": "question-answering",
        "tags": ["bert", "podium", "question-answering"],
    }
    [result] = index.pop("results")
    assert index == {"name": "demo"}
    assert result == {
        "task": {"type": "question-answering", "name": "Question Answering"},
        "dataset": {"type": "podium-demo", "name": "Podium demo questions (generated)", "split": "dev"},
        "metrics": [
            {"type": "f1", "name": "F1", "value": 94.5678},
            {"type": "exact_match", "name": "Exact match", "value": 91.2},
        ],
    }
    unknown = front_matter(model_card(facts(license=None, language=None)))
    assert {"license", "language", "base_model"}.isdisjoint(unknown)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "94.5", True])
def test_a_score_that_is_no_number_makes_no_card(value: Any) -> None:
    with pytest.raises(PublishError, match="f1"):
        model_card(facts(metrics={**METRICS, "f1": value}))


def test_the_body_gives_scores_with_intervals_training_and_the_gates_checks() -> None:
    card = model_card(facts())
    assert "| exact match | 91.20 | 89.00 to 93.10 |" in card
    assert "| F1 | 94.57 | 93.00 to 96.00 |" in card
    assert "rows of 64 tokens | 600 | 64 | 0.002 | 123,456 sequences, 7,890,123 tokens; final loss 2.3457" in card
    assert "| f1 | yes | 94.5678 | 85.0 |" in card
    assert f"`{'f' * 40}` with uncommitted changes" in card
    assert "2 of 2 data sets valid" in card
    assert "for fine-tuning (linear decay)" in card
    card = model_card(facts(name=".", title="reviews"))
    assert ("# reviews\n" in card, front_matter(card)["model-index"][0]["name"]) == (True, "reviews")
    assert 'name = "."' in card


SCORES_WITHOUT = {"exact_match": 80.5, "exact_match_low": 79.0, "exact_match_high": 82.0}
SCORES_WITHOUT |= {"f1": 85.25, "f1_low": 84.0, "f1_high": 86.0}


@pytest.mark.parametrize(
    ("examples", "scores", "stated"),
    [
        ((30, 12, 40), SCORES_WITHOUT, "30 have one in the training examples, 12 have one in the pre-training te"),
        ((30,), SCORES_WITHOUT, "30 have one in the training examples. Two"),
        ((0,), {}, "0 have one in the training examples"),
        ((1000,), {}, "Every scored example has one"),
    ],
)
def test_card_states_near_duplicates(examples: tuple[int, ...], scores: dict[str, float], stated: str) -> None:
    names = ("training examples", "pre-training text", "either of them")
    counts = zip(names, examples, strict=False)
    parts = [{"in": name, "examples": count, "of": 1000, **scores} for name, count in counts]
    found = {"near_duplicates": examples[-1], "near_duplicates_from": 0.8, "without_near_duplicates": parts}
    card = model_card(facts(metrics={**METRICS, **found}))
    assert stated in card
    assert ("| F1, without near-duplicates | 85.25 | 84.00 to 86.00 |" in card) == bool(scores)
    assert "Near-duplicates" not in model_card(facts())


COSTS: dict[str, Any] = {
    "pretrain-phase1": {
        "train_seconds": 8130.0,
        "hardware": "8 threads of AMD EPYC 7763 64-Core Processor, evil.sh",
        "energy_source": "estimated with 12 W for a busy core",
        "energy_wh": 216.84,
        "resumed_from_step": 1200,
    },
    "squad-finetune": {"train_seconds": 10.32, "resumed_from_step": 0},  # of an earlier version
}
SPEED = {
    "hardware": "Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz, 2 threads",
    "batch": 32,
    "speed": [
        {"name": name, "threads": 1, "length": 32, "calls": 7, "p50_ms": 1.5, **dict.fromkeys(others, None)}
        for name in ("model.safetensors", "onnx/model.onnx")
        for others in [("p95_ms", "p99_ms", "sequences_per_second")]
    ],
}
FILE = {"name": "onnx/model.onnx", "megabytes": 1.0, "metric": "F1", "score": 90.0, "low": 89.0, "high": 91.0}


def costly_card(**known: Any) -> str:
    trained = {**ORIGIN, "training": {**ORIGIN["training"], "squad-finetune": {}}}
    files = [{**FILE, "difference": None, "accepted": True, "failed": []}]
    return model_card(facts(provenance=trained, files=files, **known))


def test_the_card_states_hardware_time_and_energy_and_how_the_energy_is_known() -> None:
    card = costly_card(measured=COSTS, speed=SPEED)
    assert "| pretrain-phase1 | 8 threads of AMD EPYC 7763 64-Core Processor | 2 h 15 min after update 1,200 |" in card
    assert "(estimated with 12 W for a busy core) |\n| squad-finetune | not recorded | 10 s | not recorded |" in card
    assert "On Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz, 2 threads, with random tokens:" in card
    assert "| hardware |" not in costly_card()


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("", ""),
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
    card, trainings = costly_card(measured=COSTS, speed=SPEED), [*ORIGIN["training"], "squad-finetune"]
    assert place in card
    left = remove_costs(card.replace(place, text, 1) if place else card, trainings)
    assert (left == costly_card()) == (not place)
    assert not text or text.splitlines()[0].strip("| ") in left


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
    values = parameter_values(params_with())
    values["downstream"]["squad"]["data"] |= changes
    card = model_card(facts(parameters=values, data_name=called))
    dataset = front_matter(card)["model-index"][0]["results"][0]["dataset"]
    assert (dataset["type"], dataset["name"]) == (kind, name)
    assert f"On 1,000 questions of {name}, scored" in card
    assert "generated" not in card


@pytest.mark.parametrize(
    ("tokenizer", "said"),
    [
        ({"source": "train"}, "its entries are words and subwords of that text"),
        ({"source": "file"}, "its source text is not recorded"),
        ({"source": "hub", "repository": "google/bert"}, "that of `google/bert` on the Hub"),
    ],
)
def test_the_card_says_what_the_release_holds_of_the_data(tokenizer: dict[str, str], said: str) -> None:
    values = parameter_values(params_with())
    values["tokenizer"] |= tokenizer
    held = model_card(facts(parameters=values)).split("## Training data in this release")[1].split("## ")[0]
    assert said in held
    assert "a model may memorize parts" in held
    assert "are not published" in held
    with_examples = model_card(facts(parameters=values, examples=True))
    assert "`evaluation/mistakes.csv`: " in with_examples


def test_provenance_is_equal_wherever_the_release_goes_and_says_what_was_used(tmp_path: Path) -> None:
    root = make_checkout(tmp_path / "checkout")
    subject = subject_in(root)
    here = provenance(parameter_values(params_with()), root, subject)
    assert here == provenance(parameter_values(params_with(folder="elsewhere", private=False)), root, subject)
    lock = yaml.safe_load((root / "dvc.lock").read_text())
    lock["stages"]["finetune@another"] = {"cmd": "another entry"}
    (root / "dvc.lock").write_text(yaml.safe_dump(lock))
    assert here == provenance(parameter_values(params_with()), root, subject), "no stage behind it"
    lock["stages"]["finetune@squad"]["cmd"] = "something else"
    (root / "dvc.lock").write_text(yaml.safe_dump(lock))
    assert here["stages_sha256"] != provenance(parameter_values(params_with()), root, subject)["stages_sha256"]
    assert here["data"]["verdicts"]["corpus"] == {"valid": True, "rows": 12, "checks": 1, "failed": []}
    assert here["data"]["rows"]["squad-train"]["real_tokens"] == 4321
    figures = {"steps": 500, "final_loss": 0.4321, "runtime": "cpu", "precision": "fp32"}
    assert here["training"]["squad-finetune"] == figures
    assert here["prediction"] is None, "nothing states it"
    figures = {"features": 3, "packing_factor": 1.5, "runtime": "cpu", "precision": "bf16"}
    for stated in (figures, {"dev": figures, "held-out": figures}):
        (root / artifacts.metrics_file(subject.name, "predict")).write_text(json.dumps(stated))
        prediction = provenance(parameter_values(params_with()), root, subject)["prediction"]
        place = {"runtime": "cpu", "precision": "bf16"}
        assert prediction == (place if stated is figures else {"dev": place, "held-out": place})
    assert {"torch", "transformers", "huggingface_hub"} <= set(here["packages"])


def test_a_given_model_is_named_as_what_training_started_from() -> None:
    base = {"source": "hub", "repository": "google/bert-tiny", "commit": "c" * 40}
    before = {"mlm_loss": 2.5, "perplexity": 12.18, "change": -0.5, "groups": 9, "documents": 9, "new_head": False}
    first = {**ORIGIN["training"]["pretrain-phase1"], "held_out": {"rows": 40, "mlm_loss": 2.0, "perplexity": 7.39}}
    first["held_out"]["before"] = before | {"change_low": -0.6, "change_high": -0.4}
    card = model_card(facts(provenance={**ORIGIN, "base_model": base, "training": {"pretrain-phase1": first}}))
    assert front_matter(card)["base_model"] == "google/bert-tiny"
    assert f"started from `google/bert-tiny` (commit {'c' * 40})" in card
    change = "loss 2.5000 -> 2.0000 (perplexity 12.18 -> 7.39), change -0.5000 (-0.6000 to -0.4000, by documents)"
    assert change in card.replace("&gt;", ">")


@pytest.mark.parametrize(
    ("stated", "named", "linked"),
    [
        ({}, "an existing model", None),
        ({"base_name": "my-bert"}, "`my-bert`", None),
        ({"base_model": "google/bert-tiny"}, "`google/bert-tiny`", "google/bert-tiny"),
    ],
)
def test_a_given_folder_is_named_as_its_user_names_it(stated: dict[str, str], named: str, linked: str | None) -> None:
    folder = {**ORIGIN, "base_model": {"source": "folder", "folder": "md5:b0b0"}, "training": {}}
    card = model_card(facts(provenance=folder, **stated))
    assert f"started from {named}, fine-tuned with Podium" in card
    assert front_matter(card).get("base_model") == linked
    assert "md5:" not in card.split("## Provenance")[0]


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
    kept = {place[-1] for place, text in texts(found) if text == WITHHELD}
    assert kept == {"path", "text_column", "dataset_split", "config", "train_path", "dev_path", "dataset"}


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
        ("kunden/texte", WITHHELD),  # a folder next to params.yaml
        ("/home/anna/texte", WITHHELD),
        ("../kunden/texte", WITHHELD),
        ("https://user:secret@host/x", WITHHELD),
    ],
)
def test_names_of_the_hub_are_stated_and_folders_are_not(tmp_path: Path, name: str, stated: str) -> None:
    (tmp_path / "kunden/texte").mkdir(parents=True)
    (tmp_path / "copies").mkdir()
    values = shipped()
    hub = {"source": "hub", "dataset": name, "dataset_config": "plain"}
    values["downstream"]["squad"]["data"] |= hub
    values["tokenizer"] |= {"source": "hub", "repository": name, "revision": "v1"}
    values["corpus"]["dataset"] = "rajpurkar/squad"  # of another source: not read
    found = released_parameters(values, tmp_path / "copies", tmp_path)
    assert (found["downstream"]["squad"]["data"]["dataset"], found["tokenizer"]["repository"]) == (stated, stated)
    own = [found["downstream"]["squad"]["data"]["dataset_config"], found["tokenizer"]["revision"]]
    assert own == (["plain", "v1"] if stated != WITHHELD else [WITHHELD, WITHHELD])
    assert found["corpus"]["dataset"] == WITHHELD
