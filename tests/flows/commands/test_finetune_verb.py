"""`podium finetune`: what its words are as parameters, and what it refuses before anything starts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from flows.cli import cli
from flows.commands import finetune, pretrain
from flows.commands.project import CommandContext
from flows.runs.run_options import RunOptions
from flows.runs.run_params import changed_values, save_preset
from tasks.params.downstream import defaults_of, kind_names
from tasks.params.overlays import Setting, resolve
from tasks.params.schema import validate_params
from tasks.plan.named_files import find_dvc_files
from tasks.stage.errors import InputError, ParamsError
from tests.places import ROOT
from tests.tasks.conftest import hub_over_http  # noqa: F401 (the fixture `hub`)
from tests.tasks.tiny_model import HIDDEN, LAYERS, write_tiny_model

WORDS = ("who", "rules", "it")
STATED: dict[str, Any] = dict.fromkeys(
    ("dev", "learning_rate", "epochs", "global_batch_size", "seed", "runtime", "precision", "task", "layers", "distill")
) | {"regression": False}


@pytest.fixture
def here(tmp_path):
    """Where a user stands: a model's folder and files next to it."""
    write_tiny_model(tmp_path / "my-bert", WORDS)
    for name in ("train.json", "dev.json"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def overrides(here, kind, **stated):
    ctx = click.Context(finetune.KindCommands().make_command(kind))
    ctx.obj = CommandContext(here, ROOT, None)
    words = STATED | {"model": "my-bert", "train": "train.json", "columns": (), "overrides": ()} | stated
    return finetune.build_overrides(ctx, ROOT, kind, words)


def values(here, kind, **stated):
    return resolve({}, finetune.PRESET, overrides(here, kind, **stated))


def test_a_student_without_a_model_starts_from_its_teacher(here):
    found = values(here, "squad", model=None, distill="my-bert", layers=1)
    assert found["base_model"]["path"] == found["tokenizer"]["path"] == str(here / "my-bert")
    assert found["downstream"]["squad"]["distill"]["teacher"] == str(here / "my-bert")
    # the model of a run has its tokenizer next to it
    trained, tokens = here / "run/models/squad", here / "run/data/tokenizer"
    write_tiny_model(trained, WORDS)
    for name in ("tokenizer.json", "vocab.txt"):
        (trained / name).unlink(missing_ok=True)
    tokens.mkdir(parents=True)
    assert values(here, "squad", model=None, distill="run/models/squad")["tokenizer"]["path"] == str(tokens)
    assert values(here, "squad", distill="run/models/squad")["base_model"]["path"] == str(here / "my-bert")
    with pytest.raises(ParamsError, match="option --model is missing. Pass a model, or --distill TEACHER"):
        values(here, "squad", model=None)


def test_sizes_and_tokenizer_are_the_models_and_files_count_from_where_one_stands(here):
    found = values(here, "squad", dev="dev.json")
    assert found["model"] | {"hidden_size": HIDDEN, "num_layers": LAYERS} == found["model"]
    assert found["base_model"] | {"source": "folder", "path": str(here / "my-bert")} == found["base_model"]
    assert found["tokenizer"] | {"source": "file", "path": str(here / "my-bert")} == found["tokenizer"]
    assert found["downstream"]["squad"]["data"]["train_path"] == str(here / "train.json")
    assert found["downstream"]["squad"]["data"]["dev_path"] == str(here / "dev.json")
    assert not found["pretrain"]["enabled"]
    validate_params(found)


def test_a_run_that_pre_trained_is_a_model_to_fine_tune(here):
    """Its last phase, with the tokenizer that lies next to the weights."""
    ctx = click.Context(finetune.KindCommands().make_command("squad"))
    ctx.obj = CommandContext(here, here, None)
    words = STATED | {"model": "mine", "train": "train.json", "columns": (), "overrides": ()}
    for phase in ("phase1", "phase2"):
        write_tiny_model(here / "runs/checkouts/mine/models" / phase, WORDS)
    found = resolve({}, finetune.PRESET, finetune.build_overrides(ctx, here, "squad", words))
    place = "runs/checkouts/mine/models/phase2"
    assert (found["base_model"]["path"], found["tokenizer"]["path"]) == (place, place)
    (here / "runs/checkouts/mine/dvc.yaml").touch()
    assert find_dvc_files(here, [place]) == []


def test_a_model_that_lies_in_the_project_is_named_from_there(here):
    ctx = click.Context(finetune.KindCommands().make_command("squad"))
    ctx.obj = CommandContext(here, here, None)
    words = STATED | {"model": "my-bert", "train": "train.json", "columns": (), "overrides": ()}
    assert Setting("base_model.path", "my-bert") in finetune.build_overrides(ctx, here, "squad", words)


@pytest.mark.parametrize("kind", kind_names())
def test_what_is_not_said_is_what_bert_takes_for_the_kind(here, kind):
    ((name, entry),) = values(here, kind, task="sst2", train=".")["downstream"].items()
    default = defaults_of(kind, name)
    assert entry["finetune"] == default["finetune"]
    assert all(value is None for key, value in entry["gate"].items() if key.startswith("min_"))
    assert name == ("glue-sst2" if kind == "glue" else kind)


def test_rows_fit_a_model_of_few_positions_and_are_said(here, capsys):
    config = json.loads((here / "my-bert/config.json").read_text())
    (here / "my-bert/config.json").write_text(json.dumps(config | {"max_position_embeddings": 128}))
    found = values(here, "squad", overrides=("downstream.squad.rows.doc_stride=20",))
    rows = found["downstream"]["squad"]["rows"]
    assert rows | {"row_length": 128, "max_question_length": 32, "doc_stride": 20} == rows
    validate_params(found)
    said = capsys.readouterr()
    assert "the model has only 128 positions: set downstream.squad.rows.row_length=128" in said.out + said.err


def test_rows_of_pre_training_fit_a_model_of_few_positions(here, capsys):
    config = json.loads((here / "my-bert/config.json").read_text())
    (here / "my-bert/config.json").write_text(json.dumps(config | {"max_position_embeddings": 100}))
    ctx = click.Context(pretrain.command)
    ctx.obj = CommandContext(here, ROOT, None)
    words = STATED | {"model": "my-bert", "text": "train.json", "steps": 20, "global_batch_size": 4, "columns": ()}
    said = words | {"kind": "squad", "train": "train.json", "overrides": ("pretrain_rows.phase1.row_length=64",)}
    found = resolve({}, pretrain.PRESET, pretrain.build_overrides(ctx, ROOT, said))
    assert [found["pretrain_rows"][phase]["row_length"] for phase in ("phase1", "phase2")] == [64, 100]
    assert found["downstream"]["squad"]["rows"]["row_length"] == 100
    validate_params(found)
    printed = capsys.readouterr()
    assert "the model has only 100 positions: set pretrain_rows.phase1" in printed.out + printed.err


def test_options_of_pre_training_are_for_all_its_phases(here):
    ctx = click.Context(pretrain.command)
    ctx.obj = CommandContext(here, ROOT, None)
    said = STATED | {
        "model": None,
        "text": "train.json",
        "steps": 20,
        "global_batch_size": 4,
        "columns": (),
        "kind": None,
    }
    added = ("pretrain.phases=[phase1, longer]", "pretrain_rows.longer.row_length=128")
    found = resolve({}, pretrain.PRESET, pretrain.build_overrides(ctx, ROOT, said | {"overrides": added}))["pretrain"]
    assert [found[phase]["steps"] for phase in ("phase1", "longer")] == [18, 2]
    assert found["longer"]["global_batch_size"] == 4
    one = ("pretrain.phases=[phase1]",)
    found = resolve({}, pretrain.PRESET, pretrain.build_overrides(ctx, ROOT, said | {"overrides": one}))["pretrain"]
    assert found["phase1"]["steps"] == 20
    with pytest.raises(ParamsError, match="leaves nothing to pre-train"):
        pretrain.build_overrides(ctx, ROOT, said | {"overrides": ("pretrain.enabled=false",)})
    done = CliRunner().invoke(cli, ["pretrain", "--text", "train.json", "--dev", "dev.json"])
    assert (done.exit_code, "--dev is for fine-tuning: add --finetune KIND --train FILE" in done.output) == (2, True)


def test_what_is_said_is_taken(here):
    said: dict[str, Any] = {"learning_rate": 1e-5, "epochs": 2.0, "global_batch_size": 8, "seed": 7}
    found = values(here, "squad", **said, precision="bf16")
    tuned = found["downstream"]["squad"]["finetune"]
    assert tuned | said == tuned
    assert found["device"]["precision"] == "bf16"


def test_questions_that_may_have_no_answer_have_the_recipe_of_squad_2(here):
    (here / "train.json").write_text('{"data": [{"qas": [{"is_impossible": true, "answers": []}]}]}')
    entry = values(here, "squad", dev="dev.json", epochs=1.0)["downstream"]["squad"]
    assert entry["data"]["unanswerable"] == "use"
    assert entry["rows"]["held_out_fraction"] == 0.1
    assert entry["finetune"] | {"global_batch_size": 48, "epochs": 1.0} == entry["finetune"]


def test_the_fields_of_a_form_are_the_options_of_the_command(here):
    own = {"model": str(here / "my-bert"), "train": str(here / "train.json"), "dev": " ", "name": "mine"}
    form = RunOptions(
        None, ["pretrain.seed=7"], kind="classification", columns=["text=a ", "", "label=b"], **own
    ).clean_form()
    found = finetune.parse_form(ROOT, form)
    columns = [("text", "a"), ("label", "b")]
    assert (found.preset, found.name) == (finetune.PRESET, "mine")
    same = values(here, "classification", name="mine", columns=columns, overrides=["pretrain.seed=7"])
    assert resolve({}, found.preset, found.overrides) == same
    with pytest.raises(ParamsError, match="Missing option '--train'"):
        finetune.parse_form(ROOT, RunOptions(kind="classification", model="bert"))
    with pytest.raises(ParamsError, match="must be PART=NAME"):
        finetune.parse_form(ROOT, replace(form, columns=["text"]))


def test_a_release_is_called_like_the_run_or_else_like_the_model(here):
    def folder(**said):
        return str(values(here, "squad", **said)["downstream"]["squad"]["publish"]["folder"])

    assert folder() == "published/my-bert-squad"
    assert folder(name="first") == "published/first"


def test_names_of_columns(here):
    found = values(here, "squad", columns=(("context", "passage"), ("question", "asked")))["downstream"]["squad"][
        "data"
    ]
    assert found["columns"] | {"context": "passage", "question": "asked"} == found["columns"]


def test_a_data_set_of_the_hub(here):
    data = values(here, "squad", train="rajpurkar/squad")["downstream"]["squad"]["data"]
    assert data | {"source": "hub", "dataset": "rajpurkar/squad"} == data
    with pytest.raises(ParamsError, match="leave out --dev"):
        overrides(here, "squad", train="rajpurkar/squad", dev="dev.json")


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        ({"model": "nothing here"}, "not found: no folder or run has this name here"),
        ({"model": "no-bert"}, "no-bert not found: no folder or run has this name here.*user/name"),
        ({"model": "train.json"}, "is a file: pass the folder that save_pretrained wrote"),
        ({"model": "."}, "has no config.json"),
        ({"train": "absent.json"}, "--train absent.json not found"),
        ({"dev": "absent.json"}, "--dev absent.json not found"),
    ],
)
def test_what_is_not_there_is_refused(here, stated, why):
    with pytest.raises((InputError, ParamsError), match=why):
        overrides(here, "squad", **stated)


def test_a_model_of_another_kind_is_refused(here):
    config = json.loads((here / "my-bert/config.json").read_text())
    (here / "my-bert/config.json").write_text(json.dumps(config | {"model_type": "t5", "is_encoder_decoder": True}))
    with pytest.raises(InputError, match="t5 models are not encoders"):
        overrides(here, "squad")


def test_a_model_of_the_hub_is_named_by_its_commit(here, hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(here / "cache"))
    files = {path.name: path.read_bytes() for path in (here / "my-bert").iterdir()}
    commit = hub.store.add_files(hub.store.create("model", "user/bert"), files).oid
    found = values(here, "squad", model="user/bert")
    place = {"source": "hub", "repository": "user/bert", "revision": commit}
    assert found["base_model"] | place == found["base_model"]
    assert found["tokenizer"] | place == found["tokenizer"]
    assert found["model"]["hidden_size"] == HIDDEN
    assert any(path.name == "model.safetensors" for path in (here / "cache").rglob("*"))


def test_saved_params_are_a_preset_that_says_the_same(here, tmp_path):
    said = overrides(here, "squad", dev="dev.json", learning_rate=1e-5)
    save_preset(tmp_path / "mine.yaml", resolve({}, finetune.PRESET, said), "mine")
    assert resolve({}, "mine", [], tmp_path) == resolve({}, finetune.PRESET, said)
    assert yaml.safe_load((tmp_path / "mine.yaml").read_text())["downstream"]["squad"]["finetune"] == {
        "learning_rate": 1e-5
    }
    with pytest.raises(InputError, match="already exists"):
        save_preset(tmp_path / "mine.yaml", resolve({}, finetune.PRESET, said), "mine")


def test_the_defaults_differ_from_themselves_in_nothing():
    values = resolve({}, finetune.PRESET, ['downstream.a={"kind": "squad"}'])
    assert changed_values(values)["downstream"] == {"a": {"kind": "squad"}}


def test_every_kind_has_a_verb_and_a_task_must_be_one():
    listed = CliRunner().invoke(cli, ["finetune", "--help"])
    assert all(f"  {kind} " in listed.output for kind in kind_names())
    wrong = CliRunner().invoke(cli, ["finetune", "glue", "--model", "m", "--train", "t", "--task", "sst3"])
    assert wrong.exit_code == 2
    assert "'sst3' is not one of" in wrong.output


@pytest.mark.parametrize("model", [None, "my-bert"])
def test_pre_training_is_followed_by_any_kind_and_the_same_from_the_original(here, model):
    ctx = click.Context(pretrain.command)
    ctx.obj = CommandContext(here, ROOT, None)
    for kind in kind_names():
        name = "glue-sst2" if kind == "glue" else kind
        change = () if model is None else (f"downstream.{name}.finetune.epochs=7.0",)
        said = STATED | {"text": "train.json", "model": model, "train": ".", "columns": (), "overrides": change}
        said |= {"kind": kind, "steps": None, "global_batch_size": None, "task": "sst2"}
        said = {name: value for name, value in said.items() if name != "regression"}  # no word of `pretrain`
        found = resolve({}, pretrain.PRESET, pretrain.build_overrides(ctx, ROOT, said))["downstream"]
        entry, *others = found.values()
        assert entry["kind"] == kind
        assert list(found) == ([name, f"{name}-original"] if model else [name])
        for other in others:
            assert entry | {"against": f"{name}-original"} == entry
            assert other["publish"].pop("folder") == entry["publish"].pop("folder") + "-original"
            assert other == {key: value for key, value in entry.items() if key != "against"} | {"start": "base"}
            assert other["finetune"]["epochs"] == 7.0


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--learning-rate", "abc", "'abc' is not a valid float"),
        ("--learning-rate", "0", "'0': input should be greater than 0"),
        ("--learning-rate", "nan", "'nan': input should be a finite number"),
        ("--epochs", "-1", "'-1': input should be greater than 0"),
        ("--batch-size", "0", "'0': input should be greater than or equal to 1"),
        ("--seed", "1.5", "'1.5' is not a valid integer"),
        ("--runtime", "tpu", "'tpu' is not one of 'auto', 'cpu', 'cuda', 'ipu'"),
    ],
)
def test_an_option_takes_what_the_parameter_takes(option, value, why):
    """Before the model or a file is looked at: a usage error, exit code 2."""
    for words in (["finetune", "squad", "--model", "m", "--train", "t"], ["pretrain", "--text", "t"]):
        if words[0] == "finetune" or option in ("--learning-rate", "--batch-size", "--runtime"):
            done = CliRunner().invoke(cli, [*words, option, value])
            assert (done.exit_code, f"Invalid value for '{option}': {why}" in done.output) == (2, True), done.output
    if value == "abc":
        done = CliRunner().invoke(
            cli, ["sweep", "finetune", "ner", "--model", "m", "--train", "t", option, f"1,{value}"]
        )
        assert "is not a list such as 1e-5,3e-5" in str(done.exception)


def test_an_option_is_a_value_at_once_and_is_recorded_as_the_word_of_set_that_says_the_same(here):
    found = overrides(here, "squad", learning_rate=1e-05, epochs=2.0)
    assert Setting("downstream.squad.finetune.learning_rate", 1e-5) in found
    assert resolve({}, finetune.PRESET, found) == resolve({}, finetune.PRESET, [str(one) for one in found])


@pytest.mark.parametrize(
    ("typed", "override"),
    [
        ({"epochs": 3.0}, "downstream.squad.finetune.epochs=2"),
        ({"seed": 3}, "downstream.squad.finetune={seed: 4}"),
        ({"global_batch_size": 8}, "downstream.squad.finetune.global_batch_size=16"),
        ({"learning_rate": 1e-5}, "downstream.squad.finetune.learning_rate=2e-5"),
        ({"runtime": "cpu"}, "device.runtime=ipu"),
        ({"precision": "fp32"}, "device.precision=bf16"),
        ({"columns": [("context", "text")]}, "downstream.squad.data.columns.context=other"),
        ({}, "downstream.squad.data.train_path=other.json"),
        ({}, "base_model.path=other"),
    ],
)
def test_two_words_for_one_parameter_are_refused_and_both_named(here, typed, override):
    why = rf"^--\S+ \S+ and --set {re.escape(override)} both set [a-z_.0-9]+: leave one of them out$"
    with pytest.raises(ParamsError, match=why):
        values(here, "squad", **typed, overrides=(override,))


def test_defaults_and_equal_values_are_no_second_word(here):
    said = ("downstream.squad.gate.min_f1=80", "downstream.squad.publish.folder=published/own")
    found = values(here, "squad", epochs=3.0, overrides=said)["downstream"]["squad"]
    assert (found["gate"]["min_f1"], found["publish"]["folder"]) == (80, "published/own")
    assert values(here, "squad", epochs=3.0, overrides=("downstream.squad.finetune.epochs=3",))


def test_an_option_is_echoed_as_it_was_typed(here):
    with pytest.raises(ParamsError, match="^--epochs 3 and --set"):
        values(here, "squad", epochs=3.0, overrides=("downstream.squad.finetune.epochs=2",))
    words = [str(one) for one in overrides(here, "squad", epochs=3.0)]
    assert "downstream.squad.finetune.epochs=3" in words, "what a run records"


def test_set_takes_the_end_of_a_name_that_only_one_parameter_has(here):
    found = values(here, "squad", overrides=("finetune.seed=5", "gate.min_f1=80"))["downstream"]["squad"]
    assert (found["finetune"]["seed"], found["gate"]["min_f1"]) == (5, 80)
    with pytest.raises(ParamsError, match="did you mean"):
        values(here, "squad", overrides=("seed=5",))


def test_the_form_names_the_task_of_glue(here):
    fields = {"task": "sst2", "model": str(here / "my-bert"), "train": str(here), "name": "mine"}
    found = finetune.parse_form(ROOT, RunOptions(kind="glue", **fields))
    (entry,) = resolve({}, found.preset, found.overrides)["downstream"].values()
    assert entry["task"] == "sst2"
