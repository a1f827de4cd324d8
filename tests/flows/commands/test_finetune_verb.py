"""`podium finetune` and `podium pretrain`: what their words are as parameters, and what they refuse before a start."""

import json
import re
from dataclasses import replace

import click
import pytest
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
GIVEN = dict.fromkeys(
    ("dev", "learning_rate", "epochs", "global_batch_size", "seed", "runtime", "precision", "task", "layers", "distill")
) | {"model": "my-bert", "train": "train.json", "columns": (), "overrides": ()}
TEXT = GIVEN | {"model": None, "train": None, "kind": None, "text": "train.json", "steps": 20, "global_batch_size": 4}


@pytest.fixture
def here(tmp_path):
    """Where a user stands: a model's folder and files next to it."""
    write_tiny_model(tmp_path / "my-bert", WORDS)
    for name in ("train.json", "dev.json"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def context(command, here, project):
    ctx = click.Context(command)
    ctx.obj = CommandContext(here, project, None)
    return ctx


def overrides(here, kind="squad", project=ROOT, **given):
    ctx = context(finetune.KindCommands().make_command(kind), here, project)
    return finetune.build_overrides(ctx, project, kind, GIVEN | {"regression": False} | given)


def values(here, kind="squad", project=ROOT, **given):
    return resolve({}, finetune.PRESET, overrides(here, kind, project, **given))


def pretrained(here, **given):
    words = pretrain.build_overrides(context(pretrain.command, here, ROOT), ROOT, TEXT | given)
    return resolve({}, pretrain.PRESET, words)


def change_config(here, **changes):
    path = here / "my-bert/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_student_without_a_model_starts_from_its_teacher(here):
    params = values(here, model=None, distill="my-bert", layers=1)
    assert params["base_model"]["path"] == params["tokenizer"]["path"] == str(here / "my-bert")
    assert params["downstream"]["squad"]["distill"]["teacher"] == str(here / "my-bert")
    # the model of a run has its tokenizer next to it
    trained, tokens = here / "run/models/squad", here / "run/data/tokenizer"
    write_tiny_model(trained, WORDS)
    for name in ("tokenizer.json", "vocab.txt"):
        (trained / name).unlink(missing_ok=True)
    tokens.mkdir(parents=True)
    assert values(here, model=None, distill="run/models/squad")["tokenizer"]["path"] == str(tokens)
    assert values(here, distill="run/models/squad")["base_model"]["path"] == str(here / "my-bert")
    with pytest.raises(ParamsError, match="--distill TEACHER"):
        values(here, model=None)


def test_sizes_and_tokenizer_are_the_models_and_files_count_from_where_one_stands(here):
    params = values(here, dev="dev.json")
    for section, expected in {
        "model": {"hidden_size": HIDDEN, "num_layers": LAYERS},
        "base_model": {"source": "folder", "path": str(here / "my-bert")},
        "tokenizer": {"source": "file", "path": str(here / "my-bert")},
        "pretrain": {"enabled": False},
    }.items():
        assert params[section].items() >= expected.items()
    data = params["downstream"]["squad"]["data"]
    assert (data["train_path"], data["dev_path"]) == (str(here / "train.json"), str(here / "dev.json"))
    validate_params(params)
    assert Setting("base_model.path", "my-bert") in overrides(here, project=here), "in the project it counts from there"


def test_a_run_that_pre_trained_is_a_model_to_fine_tune(here):
    """Its last phase, with the tokenizer that lies next to the weights."""
    for phase in ("phase1", "phase2"):
        write_tiny_model(here / "runs/checkouts/mine/models" / phase, WORDS)
    params = values(here, project=here, model="mine")
    place = "runs/checkouts/mine/models/phase2"
    assert (params["base_model"]["path"], params["tokenizer"]["path"]) == (place, place)
    (here / "runs/checkouts/mine/dvc.yaml").touch()
    assert find_dvc_files(here, [place]) == []


@pytest.mark.parametrize("kind", kind_names())
def test_what_is_not_said_is_what_bert_takes_for_the_kind(here, kind):
    ((name, entry),) = values(here, kind, task="sst2", train=".")["downstream"].items()
    assert entry["finetune"] == defaults_of(kind, name)["finetune"]
    assert all(value is None for key, value in entry["gate"].items() if key.startswith("min_"))
    assert name == ("glue-sst2" if kind == "glue" else kind)


def test_rows_fit_a_model_of_few_positions_and_are_said(here, capsys):
    change_config(here, max_position_embeddings=128)
    params = values(here, overrides=("downstream.squad.rows.doc_stride=20",))
    rows = params["downstream"]["squad"]["rows"]
    assert (rows["row_length"], rows["max_question_length"], rows["doc_stride"]) == (128, 32, 20)
    validate_params(params)
    change_config(here, max_position_embeddings=100)
    given = {"model": "my-bert", "kind": "squad", "train": "train.json"}
    params = pretrained(here, **given, overrides=("pretrain_rows.phase1.row_length=64",))
    assert [params["pretrain_rows"][phase]["row_length"] for phase in ("phase1", "phase2")] == [64, 100]
    assert params["downstream"]["squad"]["rows"]["row_length"] == 100
    validate_params(params)
    notes = "".join(capsys.readouterr())
    for setting in ("downstream.squad.rows.row_length=128", "set pretrain_rows"):
        assert setting in notes


def test_options_of_pre_training_are_for_all_its_phases(here):
    phases = ("pretrain.phases=[phase1, longer]", "pretrain_rows.longer.row_length=128")
    section = pretrained(here, overrides=phases)["pretrain"]
    assert [section[phase]["steps"] for phase in ("phase1", "longer")] == [18, 2]
    assert section["longer"]["global_batch_size"] == 4
    assert pretrained(here, overrides=("pretrain.phases=[phase1]",))["pretrain"]["phase1"]["steps"] == 20
    with pytest.raises(ParamsError, match="leaves nothing to pre-train"):
        pretrained(here, overrides=("pretrain.enabled=false",))
    done = CliRunner().invoke(cli, ["pretrain", "--text", "train.json", "--dev", "dev.json"])
    assert (done.exit_code, "--dev" in done.output) == (2, True)


def test_what_is_said_is_taken_and_recorded_as_the_word_of_set_that_says_the_same(here):
    given = {"learning_rate": 1e-5, "epochs": 2.0, "global_batch_size": 8, "seed": 7}
    params = values(here, **given, precision="bf16", columns=(("context", "passage"), ("question", "asked")))
    entry = params["downstream"]["squad"]
    assert entry["finetune"].items() >= given.items()
    assert params["device"]["precision"] == "bf16"
    assert entry["data"]["columns"].items() >= {"context": "passage", "question": "asked"}.items()
    several = (("text", "body"), ("label", "calm"), ("label", "loud"))
    columns = values(here, kind="classification", columns=several)["downstream"]["classification"]["data"]["columns"]
    assert columns.items() >= {"text": "body", "label": ["calm", "loud"]}.items()
    settings = overrides(here, **given)
    words = [str(setting) for setting in settings]
    assert Setting("downstream.squad.finetune.learning_rate", 1e-5) in settings
    assert "downstream.squad.finetune.epochs=2" in words
    assert resolve({}, finetune.PRESET, settings) == resolve({}, finetune.PRESET, words)


def test_questions_that_may_have_no_answer_have_the_recipe_of_squad_2(here):
    (here / "train.json").write_text('{"data": [{"qas": [{"is_impossible": true, "answers": []}]}]}')
    entry = values(here, dev="dev.json", epochs=1.0)["downstream"]["squad"]
    assert (entry["data"]["unanswerable"], entry["rows"]["held_out_fraction"]) == ("use", 0.1)
    assert (entry["finetune"]["global_batch_size"], entry["finetune"]["epochs"]) == (48, 1.0)


def test_the_fields_of_a_form_are_the_options_of_the_command(here):
    fields = {"model": str(here / "my-bert"), "train": str(here / "train.json"), "dev": " ", "name": "mine"}
    columns = ["text=a ", "", "label=b"]
    form = RunOptions(None, ["pretrain.seed=7"], kind="classification", columns=columns, **fields).clean_form()
    request = finetune.parse_form(ROOT, form)
    assert (request.preset, request.name) == (finetune.PRESET, "mine")
    given = {"name": "mine", "columns": [("text", "a"), ("label", "b")], "overrides": ["pretrain.seed=7"]}
    assert resolve({}, request.preset, request.overrides) == values(here, "classification", **given)
    of_glue = finetune.parse_form(ROOT, RunOptions(kind="glue", task="sst2", **fields | {"dev": None}))
    (entry,) = resolve({}, of_glue.preset, of_glue.overrides)["downstream"].values()
    assert entry["task"] == "sst2"
    for wrong, why in (
        (RunOptions(kind="classification", model="bert"), "--train"),
        (replace(form, columns=["text"]), "PART=NAME"),
    ):
        with pytest.raises(ParamsError, match=why):
            finetune.parse_form(ROOT, wrong)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"model": "no-bert"}, "no-bert not found.*user/name"),
        ({"model": "train.json"}, "is a file"),
        ({"model": "."}, "has no config.json"),
        ({"model": "t5"}, "t5 models are not encoders"),
        ({"train": "absent.json"}, "--train absent.json not found"),
        ({"train": "rajpurkar/squad", "dev": "dev.json"}, "leave out --dev"),
        ({"overrides": ("seed=5",)}, "did you mean"),
    ],
)
def test_what_is_not_there_or_does_not_fit_is_refused(here, given, why):
    if given.get("model") == "t5":
        change_config(here, model_type="t5", is_encoder_decoder=True)
        (here / "my-bert").rename(here / "t5")
    with pytest.raises((InputError, ParamsError), match=why):
        values(here, **given)


def test_a_model_of_the_hub_is_named_by_its_commit_and_a_data_set_by_its_name(here, hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(here / "cache"))
    files = {path.name: path.read_bytes() for path in (here / "my-bert").iterdir()}
    commit = hub.store.add_files(hub.store.create("model", "user/bert"), files).oid
    params = values(here, model="user/bert", train="rajpurkar/squad")
    place = {"source": "hub", "repository": "user/bert", "revision": commit}
    for section in ("base_model", "tokenizer"):
        assert params[section].items() >= place.items()
    assert params["model"]["hidden_size"] == HIDDEN
    assert any(path.name == "model.safetensors" for path in (here / "cache").rglob("*"))
    entry = params["downstream"]["squad"]
    assert entry["data"].items() >= {"source": "hub", "dataset": "rajpurkar/squad"}.items()
    assert entry["publish"]["data_name"] is None


def test_saved_params_are_a_preset_that_says_the_same_and_nothing_that_is_a_default(here, tmp_path):
    params = resolve({}, finetune.PRESET, overrides(here, dev="dev.json", learning_rate=1e-5))
    save_preset(tmp_path / "mine.yaml", params, "mine")
    assert resolve({}, "mine", [], tmp_path) == params
    assert changed_values(params)["downstream"]["squad"]["finetune"] == {"learning_rate": 1e-5}
    with pytest.raises(InputError, match="already exists"):
        save_preset(tmp_path / "mine.yaml", params, "mine")


@pytest.mark.parametrize("kind", kind_names())
@pytest.mark.parametrize("model", [None, "my-bert"])
def test_pre_training_is_followed_by_any_kind_and_the_same_from_the_original(here, model, kind):
    name = "glue-sst2" if kind == "glue" else kind
    change = () if model is None else (f"downstream.{name}.finetune.epochs=7.0",)
    given = {"model": model, "train": ".", "overrides": change, "kind": kind, "task": "sst2"}
    entries = pretrained(here, **given, steps=None, global_batch_size=None)["downstream"]
    entry, *others = entries.values()
    assert entry["kind"] == kind
    assert list(entries) == ([name, f"{name}-original"] if model else [name])
    for other in others:
        assert entry["against"] == f"{name}-original"
        assert other["publish"].pop("folder") == entry["publish"].pop("folder") + "-original"
        assert other == {key: value for key, value in entry.items() if key != "against"} | {"start": "base"}
        assert other["finetune"]["epochs"] == 7.0


FINETUNE = ["finetune", "squad", "--model", "m", "--train", "t"]


@pytest.mark.parametrize(
    ("words", "option", "value"),
    [
        (FINETUNE, "--learning-rate", "inf"),
        (FINETUNE, "--seed", "1.5"),
        (["finetune", "glue", *FINETUNE[2:]], "--task", "sst3"),
        (["pretrain", "--text", "t"], "--batch-size", "0"),
    ],
)
def test_an_option_takes_what_the_parameter_takes(words, option, value):
    """Before the model or a file is looked at: a usage error, exit code 2."""
    done = CliRunner().invoke(cli, [*words, option, value])
    assert (done.exit_code, f"Invalid value for '{option}': '{value}'" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("typed", "option", "override"),
    [
        ({"epochs": 3.0}, "--epochs 3", "downstream.squad.finetune.epochs=2"),
        ({"seed": 3}, "--seed 3", "downstream.squad.finetune={seed: 4}"),
        ({"runtime": "cpu"}, "--runtime cpu", "device.runtime=ipu"),
        ({"columns": [("context", "text")]}, r"--column \S+", "downstream.squad.data.columns.context=other"),
        ({}, r"--train \S+", "downstream.squad.data.train_path=other.json"),
    ],
)
def test_two_words_for_one_parameter_are_refused_and_both_named_as_they_were_typed(here, typed, option, override):
    with pytest.raises(ParamsError, match=rf"^{option} and --set {re.escape(override)} "):
        values(here, **typed, overrides=(override,))


def test_defaults_and_equal_values_are_no_second_word_and_set_takes_the_end_of_a_name(here):
    words = ("gate.min_f1=80", "downstream.squad.publish.folder=published/own", "downstream.squad.finetune.epochs=3")
    entry = values(here, epochs=3.0, overrides=words)["downstream"]["squad"]
    assert (entry["gate"]["min_f1"], entry["publish"]["folder"]) == (80, "published/own")
