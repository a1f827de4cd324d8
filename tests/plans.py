"""The plan with everything that parameters can ask for: each kind of entry, parity, programs, a given model."""

import functools

import yaml

from flows.runs import checkout
from flows.runs.stage_plan import ALL, select_stages
from tasks.downstream.texts.task_table import TASKS
from tasks.params.overlays import read_base, resolve
from tasks.params.schema import validate_params
from tasks.params.strict_yaml import read_yaml
from tasks.plan import stages
from tasks.plan.dvc_records import LOCK, compute_md5
from tasks.plan.plan_file import make_plan, read_plan
from tests.places import ROOT

GIVEN = ("pretrain.enabled=false", "base_model.source=folder", "tokenizer.source=file")
"""A model that somebody has, with its vocabulary."""
EVERYTHING = (
    "device.runtime=ipu",
    "base_model.source=folder",
    "downstream.squad.parity.against=['cpu:bf16']",
    "downstream.squad.gate.released=published",
    "downstream.names={kind: ner, gate: {released: published}}",
    "downstream.values={kind: classification, regression: true, gate: {released: published}}",
    "downstream.from-base={kind: squad, start: base, publish: {folder: published/base}}",
    "downstream.texts={kind: classification}",
    *(f"downstream.glue-{task}={{kind: glue, task: {task}, gate: {{released: published}}}}" for task in TASKS),
)
NOT_ON_IPUS = ("base_model.source=folder", "downstream.search={kind: pairs, start: base}")
"""Entries of kinds that the parameters above exclude."""


def values_with(*overrides):
    return resolve(read_yaml(ROOT / "params.yaml"), None, list(overrides))


def resolved_params(root, preset, overrides):
    """The preset, or without one params.yaml of `root`, with the overrides laid over it, checked."""
    values = resolve(read_base(preset, root), preset, overrides, root / "presets")
    validate_params(values, "the parameters")
    return values


def params_of(preset, *overrides):
    return validate_params(resolved_params(ROOT, preset, list(overrides)))


def plan_of(values):
    return make_plan(stages.define(validate_params(values)))


def stages_of(values, part=ALL, to=()):
    return select_stages(plan_of(values), part, to)


def prepare_own(project, values, name):
    folder = checkout.checkout_folder(project, name)
    checkout.prepare_checkout(checkout.describe_checkout(project, values, validate_params(values), folder))
    return folder


@functools.cache
def everything():
    """Parameters that ask for every stage there is."""
    params, others = (validate_params(values_with(*overrides)) for overrides in (EVERYTHING, NOT_ON_IPUS))
    params.downstream["search"] = others.downstream["search"]
    return params


@functools.cache
def whole_plan():
    return make_plan(stages.define(everything()))


def write_outs(project):
    """Write every out of the plan, and a dvc.lock that says so."""
    records = {}
    for name, stage in read_plan(project).items():
        for out in stage.outs:
            (project / out).parent.mkdir(parents=True, exist_ok=True)
            (project / out).write_text(f"{out} by {name}")
        deps = [{"path": dep, "hash": "md5", "md5": "0" * 32} for dep in stage.deps]
        params = {file: dict.fromkeys(keys) for file, keys in stage.params.items()}
        outs = [{"path": out, "hash": "md5", "md5": compute_md5(project / out)} for out in stage.outs]
        records[name] = {"cmd": stage.cmd, "deps": deps, "params": params, "outs": outs}
    (project / LOCK).write_text(yaml.safe_dump({"schema": "2.0", "stages": records}))
