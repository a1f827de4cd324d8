"""Which stages a part of the pipeline has, and which a run to a stage; refusals name what there is."""

import json

import pytest
from click.shell_completion import BashComplete

from flows import cli, pipeline
from flows.plan import parts_of, stages_to_run
from tasks.project.errors import InputError, ParamsError
from tasks.project.overlays import resolve
from tasks.project.plan_file import definitions_of, read_plan
from tasks.project.strict_yaml import read_yaml
from tests.places import ROOT


def values(*overrides):
    return resolve(read_yaml(ROOT / "params.yaml"), None, list(overrides))


def test_the_parts_make_up_the_plan_and_pre_training_needs_no_questions():
    with_glue = values("glue.tasks=[sst2]")
    pretraining, finetuning = (stages_to_run(ROOT, with_glue, part) for part in ("pretraining", "finetuning"))
    assert (
        sorted(pretraining + finetuning) == sorted(stages_to_run(ROOT, with_glue)) == sorted(read_plan(ROOT, with_glue))
    )
    assert pretraining[-1] == "pretrain@phase2"
    assert "tokenizer" in pretraining
    assert not {"questions", "rows@squad", "validate_rows@squad", "finetune"} & set(pretraining)
    assert finetuning[-2:] == ["gate", "gate@glue-sst2"]


def test_a_run_to_a_stage_is_that_stage_and_what_it_needs():
    asked = values("glue.tasks=[sst2,rte]", "downstream.squad.parity.against=[cpu:bf16]")
    assert stages_to_run(ROOT, asked, to=["tokenizer"]) == ["corpus", "validate@corpus", "tokenizer"]
    to_sst2 = stages_to_run(ROOT, asked, to=["gate@glue-sst2"])
    assert "pretrain@phase2" in to_sst2
    assert not [stage for stage in to_sst2 if "rte" in stage or "squad" in stage or "parity" in stage]
    both = stages_to_run(ROOT, asked, to=["gate@glue-rte", "gate@glue-sst2"])
    assert both == stages_to_run(ROOT, asked, to=["glue_gate"]), "a name that several have stands for all of them"
    assert stages_to_run(ROOT, asked, to=["corpus", "tokenizer"]) == ["corpus", "validate@corpus", "tokenizer"]


@pytest.mark.parametrize(
    ("part", "to", "said"),
    [
        ("glue", [], r"the part glue has no stage .*: glue.tasks says for what it is made \(--set glue.tasks="),
        ("pretrainig", [], "--part pretrainig is not known; did you mean pretraining"),
        ("all", ["finetun"], "--to finetun is not known; did you mean finetune"),
        ("all", ["gate@glue-sst2"], "no such stage: glue.tasks says"),
        ("all", ["pretrain@phase3"], "did you mean pretrain@phase"),
        ("all", ["publish"], "publishes nothing; podium publish does"),
        ("pretraining", ["gate"], "--to gate@squad and --part pretraining name two ends"),
    ],
)
def test_an_unknown_end_is_refused_with_what_there_is(part, to, said):
    with pytest.raises(ParamsError, match=said):
        stages_to_run(ROOT, values(), part, to)


def test_the_parts_are_those_that_dvc_yaml_names():
    assert parts_of(read_plan(ROOT, values()), definitions_of(ROOT)) == ["all", "pretraining", "glue", "finetuning"]


def test_a_project_without_stages_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no stage"):
        stages_to_run(tmp_path, values())


@pytest.mark.slow
def test_a_run_to_a_stage_runs_what_it_needs_and_publishes_nothing(prefect_session, toy_project, ran):
    pipeline.pipeline(None, ["downstream.squad.gate.min_f1=0"], to=["second"], return_state=True)
    assert ran() == ["first", "second"]
    run = json.loads((toy_project / "reports" / "run.json").read_text())
    assert ([stage["name"] for stage in run["stages"]], run["error"]) == (["first", "second"], None)
    pipeline.pipeline(None, ["downstream.squad.gate.min_f1=0"], to=["gate"], return_state=True)
    run = json.loads((toy_project / "reports" / "run.json").read_text())
    found = run["results"]["gate"]
    assert (found["decision"]["accepted"], found["published"]) == (True, None)


def test_the_command_takes_stages_and_refuses_others(toy_project, capsys):
    cli.cli.main(["plan", "--to", "second"], prog_name="podium", standalone_mode=False)
    said = capsys.readouterr()
    assert "gate" not in said.out
    assert said.err == "next: podium run --to second\n"
    with pytest.raises(ParamsError, match="--to secnd is not known; did you mean second"):
        cli.cli.main(["run", "--to", "secnd"], prog_name="podium", standalone_mode=False)
    found = BashComplete(cli.cli, {}, "podium", "_PODIUM_COMPLETE")
    assert [item.value for item in found.get_completions(["run", "--to"], "s")] == ["second"]
