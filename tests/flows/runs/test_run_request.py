"""A run's parameters are checked, composed and expanded once in its process, whatever command it is asked for by."""

from __future__ import annotations

import functools
import json
import sys
from collections import Counter

import pytest

from flows import pipeline  # noqa: F401 (what the flow imports is counted as well)
from flows.checks import preflight
from flows.runs import checkout
from flows.runs.run_options import RunOptions
from flows.runs.run_request import resolve_request
from tasks.params import schema
from tasks.params.schema import validate_params
from tasks.plan import plan_file, stages, writing
from tests.flows.toy_runs import FASTER, podium
from tests.tasks.tiny_model import write_tiny_model

ONCE = {"validate_params": 1, "define": 1, "expand": 1}


@pytest.fixture
def counted(monkeypatch):
    """How often parameters were checked, composed and expanded since, by whatever module."""
    calls: Counter[str] = Counter()

    def count(function):
        @functools.wraps(function)
        def counting(*arguments, **named):
            calls[function.__name__] += 1
            return function(*arguments, **named)

        return counting

    for function in (schema.validate_params, stages.define, plan_file.expand):
        counting = count(function)
        for module in [one for name, one in sys.modules.items() if name.startswith(("flows", "tasks"))]:
            for name in [name for name, value in vars(module).items() if value is function]:
                monkeypatch.setattr(module, name, counting)
    plan_file._expand_plan.cache_clear()
    return calls


def test_a_run_resolves_its_parameters_once(prefect_session, toy_project, capsys, counted):
    words = ("--name", "mine", "--set", FASTER, "--to", "first")
    assert podium(capsys, "run", *words)[0] == 0
    assert counted == ONCE
    counted.clear()
    plan_file._expand_plan.cache_clear()
    podium(capsys, "run", *words)
    assert counted == ONCE, "nor more often where nothing has changed"


FINETUNE = ("finetune", "squad", "--model", "bert", "--train", "train.json")


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--set", FASTER, "--page", "plan.html"),
        (*FINETUNE, "--learning-rate", "1e-5"),
        (*FINETUNE, "--save-params", "mine.yaml"),
        ("pretrain", "--text", "train.json", "--steps", "100"),
        ("run", "--preset", "finetune", "--set", 'downstream.squad={"kind": "squad"}', "--name", "s-l1"),
    ],
)
def test_so_do_a_plan_and_commands_that_end_in_a_run(toy_project, monkeypatch, capsys, counted, words):
    """As far as the flow, which starts with what was resolved; what the toy has no files for is not looked at."""
    write_tiny_model(toy_project / "bert", ["who"])
    (toy_project / "train.json").write_text('{"data": []}')
    monkeypatch.setattr(preflight, "require_runnable", lambda *_: None)
    monkeypatch.setattr("flows.commands.run._run", lambda *_: 0)
    assert podium(capsys, *words)[0] == 0
    assert counted == ONCE


def test_a_checkout_has_what_its_own_parameters_would_compose_to(toy_project):
    (toy_project.parent / "mine.txt").write_text("text")
    words = ("corpus.source=files", "corpus.path=../mine.txt", "downstream.squad.data.source=files", FASTER)
    request = resolve_request(toy_project, RunOptions(overrides=words, name="mine"))
    assert request.values["corpus"]["path"] == "../mine.txt" == request.params.corpus.path
    assert request.checkout.values["corpus"]["path"] == "../../../../mine.txt"
    assert request.checkout.definitions == stages.define(validate_params(request.checkout.values))
    checkout.prepare_checkout(request.checkout)
    assert json.loads(json.dumps(request.checkout.values)) == checkout.read_base(None, request.root)
    writing.require_plan(request.root, schema.load_params(request.root / "params.yaml"))


def test_0_and_0_0_are_one_value_of_a_parameter(toy_project):
    key = "downstream.squad.finetune.weight_decay"
    found = [resolve_request(toy_project, RunOptions(None, [f"{key}={text}"])) for text in ("0", "0.0")]
    assert found[0].name == found[1].name
    assert [type(one.values["downstream"]["squad"]["finetune"]["weight_decay"]) for one in found] == [float, float]
