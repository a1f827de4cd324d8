"""Which stages a part of the pipeline has, and which a run to a stage; refusals name the stages that exist."""

import pytest
from click.shell_completion import BashComplete

from flows import cli
from tasks.stage.errors import ParamsError
from tests.flows.toy_runs import podium, run, run_json, statuses
from tests.plans import plan_of, stages_of, values_with

SST2, RTE = (f"downstream.glue-{task}={{kind: glue, task: {task}}}" for task in ("sst2", "rte"))
GIVEN = (
    *("base_model.source=folder", "pretrain.enabled=false", "tokenizer.source=file"),
    "downstream.squad.data.source=files",
)


def naming(stages, *words):
    return [stage for stage in stages if any(word in stage for word in words)]


def test_the_parts_make_up_the_plan_and_pre_training_needs_no_questions():
    with_glue = values_with(SST2)
    pretraining, finetuning, glue = (stages_of(with_glue, part) for part in ("pretraining", "finetuning", "glue"))
    assert (glue[-1], naming(glue, "squad")) == ("gate@glue-sst2", [])
    whole = stages_of(with_glue)
    assert sorted(pretraining + finetuning) == sorted(whole)
    assert whole == list(plan_of(with_glue))
    assert (pretraining[-1], naming(pretraining, "@squad", "@glue-sst2")) == ("pretrain@phase2", [])
    assert "tokenizer" in pretraining
    assert finetuning[-2:] == ["gate@squad", "gate@glue-sst2"]


def test_a_run_to_a_stage_is_that_stage_and_what_it_needs():
    asked = values_with(SST2, RTE, "downstream.squad.parity.against=['cpu:bf16']")
    tokenizer = ["corpus@text", "validate@corpus", "tokenizer"]
    assert stages_of(asked, to=["tokenizer"]) == stages_of(asked, to=["corpus", "tokenizer"]) == tokenizer
    to_sst2 = stages_of(asked, to=["gate@glue-sst2"])
    assert "pretrain@phase2" in to_sst2
    assert naming(to_sst2, "rte", "squad", "parity") == []
    every = ["gate@squad", "gate@glue-rte", "gate@glue-sst2"]
    assert stages_of(asked, to=every) == stages_of(asked, to=["gate"]), "what several have: all"
    assert stages_of(asked, to=["parity"])[-1] == "parity@squad-cpu:bf16"


def test_fine_tuning_of_a_given_model_has_neither_text_nor_pre_training_and_no_entry_leaves_these_alone():
    of_squad = ("examples", "rows", "finetune", "predict", "predict_released", "evaluate", "gate")
    plan = stages_of(values_with(*GIVEN), to=["gate@squad"])
    assert sorted(plan) == sorted(["tokenizer", "base_model@given", *(f"{stage}@squad" for stage in of_squad)])
    assert plan == stages_of(values_with(*GIVEN)), "there is nothing else"
    plan = stages_of(values_with(SST2, "downstream.squad=null"))
    assert (plan[-1], naming(plan, "squad")) == ("gate@glue-sst2", [])
    assert stages_of(values_with("downstream.squad=null")) == stages_of(values_with(), "pretraining")


@pytest.mark.parametrize(
    ("part", "to", "reason"),
    [
        ("glue", [], "--part glue not found"),
        ("squd", [], "did you mean squad"),
        ("all", ["finetun"], "did you mean finetune"),
        ("all", ["gate@glue-sst2"], "have no such stage"),
        ("all", ["pretrain@phase3"], "depends on pretrain.enabled"),
        ("all", ["publish"], "use podium publish"),
        ("all", ["validate_examples@squad"], "use --to examples@squad$"),
        ("pretraining", ["gate"], "cannot be combined"),
        ("pretraining", [], "pretrain.enabled"),
    ],
)
def test_an_unknown_end_is_refused_with_what_there_is(part, to, reason):
    values = values_with("pretrain.enabled=false") if (part, to) == ("pretraining", []) else values_with()
    with pytest.raises(ParamsError, match=reason):
        stages_of(values, part, to)


def test_a_run_to_a_stage_runs_what_it_needs_and_publishes_nothing(prefect_session, toy_project, ran):
    run("downstream.squad.gate.min_f1=0", to=["gate@squad"])
    assert ran() == ["first", "second"]
    assert list(statuses(toy_project)) == ["first", "second", "gate@squad"]
    result = run_json(toy_project)["results"]["gate@squad"]
    assert (result["decision"]["accepted"], result["published"]) == (True, None)


def test_the_command_takes_and_completes_stages(toy_project, capsys):
    code, printed = podium(capsys, "plan", "--to", "second")
    assert (code, "gate" in printed.out, printed.err) == (0, False, "next: podium run --to second\n")
    complete = BashComplete(cli.cli, {}, "podium", "_PODIUM_COMPLETE")
    assert [item.value for item in complete.get_completions(["run", "--to"], "s")] == ["second"]
