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
STATED = dict.fromkeys(
    ("dev", "learning_rate", "epochs", "global_batch_size", "seed", "runtime", "precision", "task", "layers", "distill")
) | {"model": "my-bert", "train": "train.json", "columns": (), "overrides": ()}
TEXT = STATED | {"model": None, "train": None, "kind": None, "text": "train.json", "steps": 20, "global_batch_size": 4}


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


def overrides(here, kind="squad", project=ROOT, **stated):
    ctx = context(finetune.KindCommands().make_command(kind), here, project)
    return finetune.build_overrides(ctx, project, kind, STATED | {"regression": False} | stated)


def values(here, kind="squad", project=ROOT, **stated):
    return resolve({}, finetune.PRESET, overrides(here, kind, project, **stated))


def pretrained(here, **stated):
    words = pretrain.build_overrides(context(pretrain.command, here, ROOT), ROOT, TEXT | stated)
    return resolve({}, pretrain.PRESET, words)


def change_config(here, **changes):
    path = here / "my-bert/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_student_without_a_model_starts_from_its_teacher(here):
    found = values(here, model=None, distill="my-bert", layers=1)
    assert found["base_model"]["path"] == found["tokenizer"]["path"] == str(here / "my-bert")
    assert found["downstream"]["squad"]["distill"]["teacher"] == str(here / "my-bert")
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
    found = values(here, dev="dev.json")
    assert found["model"] | {"hidden_size": HIDDEN, "num_layers": LAYERS} == found["model"]
    assert found["base_model"] | {"source": "folder", "path": str(here / "my-bert")} == found["base_model"]
    assert found["tokenizer"] | {"source": "file", "path": str(here / "my-bert")} == found["tokenizer"]
    data = found["downstream"]["squad"]["data"]
    assert (data["train_path"], data["dev_path"]) == (str(here / "train.json"), str(here / "dev.json"))
    assert not found["pretrain"]["enabled"]
    validate_params(found)
    assert Setting("base_model.path", "my-bert") in overrides(here, project=here), "in the project it counts from there"


def test_a_run_that_pre_trained_is_a_model_to_fine_tune(here):
    """Its last phase, with the tokenizer that lies next to the weights."""
    for phase in ("phase1", "phase2"):
        write_tiny_model(here / "runs/checkouts/mine/models" / phase, WORDS)
    found = values(here, project=here, model="mine")
    place = "runs/checkouts/mine/models/phase2"
    assert (found["base_model"]["path"], found["tokenizer"]["path"]) == (place, place)
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
    found = values(here, overrides=("downstream.squad.rows.doc_stride=20",))
    rows = found["downstream"]["squad"]["rows"]
    assert rows | {"row_length": 128, "max_question_length": 32, "doc_stride": 20} == rows
    validate_params(found)
    change_config(here, max_position_embeddings=100)
    stated = {"model": "my-bert", "kind": "squad", "train": "train.json"}
    found = pretrained(here, **stated, overrides=("pretrain_rows.phase1.row_length=64",))
    assert [found["pretrain_rows"][phase]["row_length"] for phase in ("phase1", "phase2")] == [64, 100]
    assert found["downstream"]["squad"]["rows"]["row_length"] == 100
    validate_params(found)
    said = "".join(capsys.readouterr())
    for setting in ("downstream.squad.rows.row_length=128", "set pretrain_rows"):
        assert setting in said


def test_options_of_pre_training_are_for_all_its_phases(here):
    found = pretrained(here, overrides=("pretrain.phases=[phase1, longer]", "pretrain_rows.longer.row_length=128"))
    assert [found["pretrain"][phase]["steps"] for phase in ("phase1", "longer")] == [18, 2]
    assert found["pretrain"]["longer"]["global_batch_size"] == 4
    assert pretrained(here, overrides=("pretrain.phases=[phase1]",))["pretrain"]["phase1"]["steps"] == 20
    with pytest.raises(ParamsError, match="leaves nothing to pre-train"):
        pretrained(here, overrides=("pretrain.enabled=false",))
    done = CliRunner().invoke(cli, ["pretrain", "--text", "train.json", "--dev", "dev.json"])
    assert (done.exit_code, "--dev" in done.output) == (2, True)


def test_what_is_said_is_taken_and_recorded_as_the_word_of_set_that_says_the_same(here):
    said = {"learning_rate": 1e-5, "epochs": 2.0, "global_batch_size": 8, "seed": 7}
    found = values(here, **said, precision="bf16", columns=(("context", "passage"), ("question", "asked")))
    tuned, columns = (found["downstream"]["squad"][part] for part in ("finetune", "data"))
    assert tuned | said == tuned
    assert found["device"]["precision"] == "bf16"
    assert columns["columns"] | {"context": "passage", "question": "asked"} == columns["columns"]
    settings = overrides(here, **said)
    assert Setting("downstream.squad.finetune.learning_rate", 1e-5) in settings
    assert "downstream.squad.finetune.epochs=2" in [str(one) for one in settings]
    assert resolve({}, finetune.PRESET, settings) == resolve({}, finetune.PRESET, [str(one) for one in settings])


def test_questions_that_may_have_no_answer_have_the_recipe_of_squad_2(here):
    (here / "train.json").write_text('{"data": [{"qas": [{"is_impossible": true, "answers": []}]}]}')
    entry = values(here, dev="dev.json", epochs=1.0)["downstream"]["squad"]
    assert entry["data"]["unanswerable"] == "use"
    assert entry["rows"]["held_out_fraction"] == 0.1
    assert entry["finetune"] | {"global_batch_size": 48, "epochs": 1.0} == entry["finetune"]


def test_the_fields_of_a_form_are_the_options_of_the_command(here):
    own = {"model": str(here / "my-bert"), "train": str(here / "train.json"), "dev": " ", "name": "mine"}
    columns = ["text=a ", "", "label=b"]
    form = RunOptions(None, ["pretrain.seed=7"], kind="classification", columns=columns, **own).clean_form()
    found = finetune.parse_form(ROOT, form)
    assert (found.preset, found.name) == (finetune.PRESET, "mine")
    stated = {"name": "mine", "columns": [("text", "a"), ("label", "b")], "overrides": ["pretrain.seed=7"]}
    assert resolve({}, found.preset, found.overrides) == values(here, "classification", **stated)
    of_glue = finetune.parse_form(ROOT, RunOptions(kind="glue", task="sst2", **own | {"dev": None}))
    (entry,) = resolve({}, of_glue.preset, of_glue.overrides)["downstream"].values()
    assert entry["task"] == "sst2"
    for wrong, why in (
        (RunOptions(kind="classification", model="bert"), "--train"),
        (replace(form, columns=["text"]), "PART=NAME"),
    ):
        with pytest.raises(ParamsError, match=why):
            finetune.parse_form(ROOT, wrong)


def test_a_data_set_of_the_hub(here):
    entry = values(here, train="rajpurkar/squad")["downstream"]["squad"]
    assert entry["data"] | {"source": "hub", "dataset": "rajpurkar/squad"} == entry["data"]
    assert entry["publish"]["data_name"] is None


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        ({"model": "nothing here"}, "nothing here not found"),
        ({"model": "no-bert"}, "no-bert not found.*user/name"),
        ({"model": "train.json"}, "is a file"),
        ({"model": "."}, "has no config.json"),
        ({"model": "t5"}, "t5 models are not encoders"),
        ({"train": "absent.json"}, "--train absent.json not found"),
        ({"dev": "absent.json"}, "--dev absent.json not found"),
        ({"train": "rajpurkar/squad", "dev": "dev.json"}, "leave out --dev"),
        ({"overrides": ("seed=5",)}, "did you mean"),
    ],
)
def test_what_is_not_there_or_does_not_fit_is_refused(here, stated, why):
    if stated.get("model") == "t5":
        change_config(here, model_type="t5", is_encoder_decoder=True)
        (here / "my-bert").rename(here / "t5")
    with pytest.raises((InputError, ParamsError), match=why):
        values(here, **stated)


def test_a_model_of_the_hub_is_named_by_its_commit(here, hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(here / "cache"))
    files = {path.name: path.read_bytes() for path in (here / "my-bert").iterdir()}
    commit = hub.store.add_files(hub.store.create("model", "user/bert"), files).oid
    found = values(here, model="user/bert")
    place = {"source": "hub", "repository": "user/bert", "revision": commit}
    assert found["base_model"] | place == found["base_model"]
    assert found["tokenizer"] | place == found["tokenizer"]
    assert found["model"]["hidden_size"] == HIDDEN
    assert any(path.name == "model.safetensors" for path in (here / "cache").rglob("*"))


def test_saved_params_are_a_preset_that_says_the_same_and_nothing_that_is_a_default(here, tmp_path):
    stated = resolve({}, finetune.PRESET, overrides(here, dev="dev.json", learning_rate=1e-5))
    save_preset(tmp_path / "mine.yaml", stated, "mine")
    assert resolve({}, "mine", [], tmp_path) == stated
    assert changed_values(stated)["downstream"]["squad"]["finetune"] == {"learning_rate": 1e-5}
    with pytest.raises(InputError, match="already exists"):
        save_preset(tmp_path / "mine.yaml", stated, "mine")


@pytest.mark.parametrize("model", [None, "my-bert"])
def test_pre_training_is_followed_by_any_kind_and_the_same_from_the_original(here, model):
    for kind in kind_names():
        name = "glue-sst2" if kind == "glue" else kind
        change = () if model is None else (f"downstream.{name}.finetune.epochs=7.0",)
        stated = {"model": model, "train": ".", "overrides": change, "kind": kind, "task": "sst2"}
        found = pretrained(here, **stated, steps=None, global_batch_size=None)["downstream"]
        entry, *others = found.values()
        assert entry["kind"] == kind
        assert list(found) == ([name, f"{name}-original"] if model else [name])
        for other in others:
            assert entry | {"against": f"{name}-original"} == entry
            assert other["publish"].pop("folder") == entry["publish"].pop("folder") + "-original"
            assert other == {key: value for key, value in entry.items() if key != "against"} | {"start": "base"}
            assert other["finetune"]["epochs"] == 7.0


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--learning-rate", "abc"),
        ("--learning-rate", "nan"),
        ("--epochs", "-1"),
        ("--batch-size", "0"),
        ("--seed", "1.5"),
        ("--runtime", "tpu"),
        ("--task", "sst3"),
    ],
)
def test_an_option_takes_what_the_parameter_takes(option, value):
    """Before the model or a file is looked at: a usage error, exit code 2."""
    kind = "glue" if option == "--task" else "squad"
    for words in (["finetune", kind, "--model", "m", "--train", "t"], ["pretrain", "--text", "t"]):
        if words[0] == "finetune" or option in ("--learning-rate", "--batch-size", "--runtime"):
            done = CliRunner().invoke(cli, [*words, option, value])
            assert done.exit_code == 2
            assert f"Invalid value for '{option}': '{value}'" in done.output
    if value == "abc":
        words = ["sweep", "finetune", "ner", "--model", "m", "--train", "t", option, f"1,{value}"]
        assert isinstance(CliRunner().invoke(cli, words).exception, ParamsError)


@pytest.mark.parametrize(
    ("typed", "override"),
    [
        ({"epochs": 3.0}, "downstream.squad.finetune.epochs=2"),
        ({"seed": 3}, "downstream.squad.finetune={seed: 4}"),
        ({"runtime": "cpu"}, "device.runtime=ipu"),
        ({"columns": [("context", "text")]}, "downstream.squad.data.columns.context=other"),
        ({}, "downstream.squad.data.train_path=other.json"),
        ({}, "base_model.path=other"),
    ],
)
def test_two_words_for_one_parameter_are_refused_and_both_named_as_they_were_typed(here, typed, override):
    option = "--epochs 3" if "epochs" in typed else r"--\S+ \S+"
    with pytest.raises(ParamsError, match=rf"^{option} and --set {re.escape(override)} "):
        values(here, **typed, overrides=(override,))


def test_defaults_and_equal_values_are_no_second_word_and_set_takes_the_end_of_a_name(here):
    said = ("gate.min_f1=80", "downstream.squad.publish.folder=published/own", "downstream.squad.finetune.epochs=3")
    found = values(here, epochs=3.0, overrides=said)["downstream"]["squad"]
    assert (found["gate"]["min_f1"], found["publish"]["folder"]) == (80, "published/own")
