"""The presets of recipes: each number against the table written by hand, each job against the checks of its runtime."""

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flows.runs.stopping import STOP_TIMEOUT_S
from ipu_model.core.schedules import BatchSizes
from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.estimates.ipu import build_program, describe_evaluations
from ipu_model.estimates.ipu_time import call_interval
from ipu_model.estimates.shapes import RowShape
from ipu_model.ipu.planning import IpuPlan, plan_ipu
from ipu_model.jobs.job import EvaluationConfig, Job
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import Manifest
from ipu_model.train.checkpoint_writer import ASSUMED_SAVE_SECONDS, SAVE_MARGIN
from tasks.downstream.jobs.entry_jobs import build_finetune_job, build_predict_job
from tasks.jobs.training import model_config, optimizer_config
from tasks.params.entries import find_entry
from tasks.params.overlays import read_preset, resolve
from tasks.params.schema import Params, validate_params
from tasks.pretraining.pretrain import make_pretrain_job
from tasks.stage import artifacts
from tasks.stage.row_folders import read_manifest
from tests.ipu_model.ipu.preset_layouts import LAYOUTS
from tests.places import ROOT
from tests.tasks.params.recipe_table import PORTABLE, RECIPES, TOKENS, Phase, Row, Squad

PRESETS = ROOT / "presets"
VOCABULARY = 30522
SQUAD_PACKING_FACTOR = {384: 2.18, 512: 2.2}
"""Windows in a row. 384 tokens: what best-fit packing of SQuAD's 88,641 features reaches with 3 in a row or more
(LPFHP of graphcore/examples:tutorials/blogs_code/packedBERT on their histogram); 512: Optimum's packed notebook."""


def resolved(name: str) -> Params:
    return validate_params(resolve({}, name, [], PRESETS))


def manifest(name: str, row_length: int, factor: float) -> Manifest:
    rows = 1_000_000
    kind = "question_answering" if name.startswith("squad") else "pretrain"
    return Manifest(kind, row_length, 3, 20, VOCABULARY, "0", 0, rows, round(rows * factor), rows, {})


def planned(job: Job, model: ModelConfig, factor: float) -> IpuPlan:
    """The plan of the IPU runtime, which refuses what cannot run; `say` fails on a key it had to translate."""

    def say(text: str) -> None:
        assert "ipu_config" not in text, text

    return plan_ipu(job, model, factor, True, PopRunInstances(), say)


PACKING_FACTOR = {128: 1.17, 384: 1.7, 512: 2.0}
"""Sequences in a row on Wikipedia, at most 3: graphcore/examples:nlp/bert/pytorch/configs_pretraining.yml."""
BASE_MODEL = (768, 12, 12, 3072)
LARGE_MODEL = (1024, 24, 16, 4096)


def layers_of(plan: IpuPlan) -> tuple[int, ...]:
    counts = Counter(plan.placement.layers)
    return tuple(counts[ipu] for ipu in range(plan.placement.ipus_per_replica))


def jobs_of(params: Params, root: Path, factors: dict[str, float]) -> dict[str, Job]:
    squad, phases = find_entry(params, "squad"), params.pretrain_rows
    lengths = {"phase1": phases.phase1.row_length, "phase2": phases.phase2.row_length}
    lengths |= dict.fromkeys(("squad/train", "squad/dev"), squad.rows.row_length)
    for name, length in lengths.items():
        folder = root / artifacts.rows_folder(name)
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(manifest(name, length, factors.get(name, 1.0)).to_json())
    (root / params.ipu.config).mkdir(parents=True)
    rows = root / artifacts.rows_folder("squad", "dev")
    return {
        "phase1": make_pretrain_job("phase1", params, root),
        "phase2": make_pretrain_job("phase2", params, root),
        "finetune": build_finetune_job(squad, params, root),
        "predict": build_predict_job(squad, params, rows, root / "l", root, root),
    }


def test_every_preset_of_a_recipe_stands_in_the_table_and_names_its_source():
    recipes = [path.stem for path in PRESETS.glob("*.yaml") if path.stem.split("-")[0] in ("ipu", "cuda", "cpu")]
    assert sorted(name for name in recipes if "sst2" not in name) == sorted([*RECIPES, *PORTABLE])
    assert [name for name in recipes if not read_preset(name, PRESETS).head.source] == []


@pytest.mark.parametrize("name", RECIPES)
def test_a_preset_says_what_its_source_says(name: str, tmp_path: Path):
    recipe, params = RECIPES[name], resolved(name)
    rows = params.pretrain_rows
    packed = {phase: PACKING_FACTOR[getattr(rows, phase).row_length] for phase in recipe.phases} or {
        "squad/train": SQUAD_PACKING_FACTOR[params.downstream["squad"].rows.row_length]
    }
    factors = packed if name.endswith(("packed", "fast")) else {}
    jobs = jobs_of(params, tmp_path, factors)
    model = model_config(params.model, manifest("phase1", 128, 1.0))
    assert params.pretrain.enabled == bool(recipe.phases)
    for phase, expected in recipe.phases.items():
        assert rows.max_sequences_per_row == (3 if factors else 1)
        shape, batch = getattr(rows, phase), getattr(params.pretrain, phase)
        plan = planned(jobs[phase], model, factors.get(phase, 1.0))
        limits = (shape.row_length, shape.max_predictions_per_row)
        assert row(jobs[phase], plan, *limits, batch.steps) == expected, phase
        assert seconds_to_stop(jobs[phase], plan, model, *limits) < STOP_TIMEOUT_S
    squad = params.downstream["squad"]
    plan = planned(jobs["finetune"], model, factors.get("squad/train", 1.0))
    assert squad.finetune.schedule == ("cosine" if "optimum-packed" in name else "linear")
    assert row(jobs["finetune"], plan, squad.rows.row_length, 0, squad.finetune.epochs) == recipe.finetune
    assert seconds_to_stop(jobs["finetune"], plan, model, squad.rows.row_length, 0) < STOP_TIMEOUT_S
    plan = planned(jobs["predict"], model, 1.0)
    assert (plan.micro_batch_size, plan.replicas, plan.updates_per_call, layers_of(plan)) == recipe.predict
    assert plan.pipelined_inference


def test_mosaic_says_what_its_source_says(tmp_path: Path):
    """mosaicml/examples: mosaic-bert-base-uncased.yaml."""
    params = resolved("mosaic")
    rows, training = params.pretrain_rows, params.pretrain
    assert (rows.next_sentence, rows.masked_fraction, training.masking) == (False, 0.3, "dynamic")
    assert params.pretrain.list_phases() == ("phase1",)
    assert (rows.phase1.row_length, rows.phase1.duplicates) == (128, 1)
    folder = tmp_path / artifacts.rows_folder("phase1")
    folder.mkdir(parents=True)
    packed = dataclasses.replace(manifest("phase1", 128, 1.0), kind=rows.row_kind)
    (folder / "manifest.json").write_text(packed.to_json())
    job = make_pretrain_job("phase1", params, tmp_path)
    assert (job.head, job.seed, job.runtime, job.precision) == ("masked_lm", 17, "cuda", "bf16")
    assert job.schedule.steps * job.geometry.global_batch_size == 286_720_000
    assert (job.geometry.global_batch_size, job.geometry.micro_batch_size) == (4096, 128)
    assert (job.schedule.warmup_fraction, job.schedule.shape) == (0.06, "linear")
    optimizer = job.optimizer
    assert (optimizer.name, optimizer.learning_rate, optimizer.max_grad_norm) == ("adamw", 5e-4, None)
    assert (optimizer.beta1, optimizer.beta2, optimizer.eps, optimizer.bias_correction) == (0.9, 0.98, 1e-6, True)
    assert optimizer.weight_decay * optimizer.learning_rate == pytest.approx(1e-5)
    model = model_config(params.model, packed)
    assert (model.hidden_size, model.num_layers, model.num_heads, model.intermediate_size) == BASE_MODEL
    assert (model.hidden_dropout, model.attention_dropout, model.layer_norm_eps) == (0.1, 0.0, 1e-12)


@pytest.mark.parametrize("name", TOKENS)
def test_a_preset_of_modernbert_has_the_tokens_of_its_source(name: str):
    """AnswerDotAI/ModernBERT:yamls/modernbert, and lindvalllab/BioClinical-ModernBERT."""
    (phases, decay), params = TOKENS[name], resolved(name)
    rows, training = params.pretrain_rows, params.pretrain
    assert (rows.next_sentence, rows.masked_fraction, training.masking) == (False, 0.3, "dynamic")
    assert training.list_phases() == tuple(f"phase{number}" for number in range(1, 1 + len(phases)))
    for phase, source in zip(training.phases, phases, strict=True):
        batch, length = training.get_phase(phase), rows.get_phase(phase).row_length
        growing = round(batch.steps * (batch.batch_warmup_fraction or 0))
        batches = BatchSizes(batch.global_batch_size, batch.first_batch_size or batch.global_batch_size, growing)
        warm = round(batch.steps * batch.warmup_fraction)
        tokens = [batches.count_before(update) * length / 1e9 for update in (batch.steps, growing, warm)]
        published = [source.tokens, source.growing_tokens, source.warmup_tokens]
        assert tokens == pytest.approx(published, rel=1e-3, abs=length * batch.global_batch_size / 2e9), phase
        assert batch.first_batch_size == source.first_batch
        sizes = (length, batch.global_batch_size, batch.micro_batch_size, batch.learning_rate)
        assert sizes == (source.row_length, source.batch, source.micro_batch, source.learning_rate)
        assert (batch.schedule, batch.global_rope_theta) == (source.schedule, source.theta)
        assert batch.decay_fraction == (1.0 if source.schedule == "1-sqrt" else None), "of its t_decay, max_duration"
    assert (training.beta1, training.beta2, training.eps) == (0.9, 0.98, 1e-6)
    assert training.weight_decay == pytest.approx(decay, rel=1e-4)
    sizes = params.model
    assert (sizes.num_layers, sizes.hidden_size, sizes.num_heads, sizes.intermediate_size) == (
        (28, 1024, 16, 2624) if "large" in name else (22, 768, 12, 1152)
    )
    assert (sizes.max_positions, sizes.layer_norm_eps) == (8192, 1e-5)


def seconds_to_stop(job: Job, plan: IpuPlan, model: ModelConfig, row_length: int, masks: int) -> float:
    """From SIGTERM to the end of a training on a POD of Mk2: the running call, and a checkpoint on a slow disk."""
    seconds = call_interval(build_program(job, model, plan, RowShape(row_length, masks))).likely
    return seconds + SAVE_MARGIN * ASSUMED_SAVE_SECONDS


def test_a_workers_service_waits_for_a_training_as_long_as_podium_does():
    unit = (ROOT / "deploy" / "podium-worker@.service").read_text(encoding="utf-8")
    assert f"\nTimeoutStopSec={STOP_TIMEOUT_S}\n" in unit


def row(job: Job, plan: IpuPlan, row_length: int, masks: int, length: Any) -> Row:
    sizes = (job.geometry.global_batch_size, plan.micro_batch_size, plan.replicas, plan.accumulation, length)
    rates = (job.optimizer.learning_rate, job.schedule.warmup_fraction, job.optimizer.loss_scaling)
    return Row(row_length, masks, *sizes, *rates, layers_of(plan), plan.placement.forward_stages, plan.updates_per_call)


@pytest.mark.parametrize("name", RECIPES)
def test_what_all_presets_share(name: str):
    params = resolved(name)
    model = params.model
    sizes = (model.hidden_size, model.num_layers, model.num_heads, model.intermediate_size)
    assert sizes == (BASE_MODEL if "-base-" in name else LARGE_MODEL)
    assert (params.device.runtime, params.device.precision) == ("ipu", "fp16")
    assert params.downstream["squad"].finetune.max_grad_norm is None
    jobs = [params.downstream["squad"].ipu.finetune]
    if RECIPES[name].phases:
        assert (params.pretrain.optimizer, params.pretrain.max_grad_norm) == ("lamb", None), "PopTorch's LAMB clips not"
        jobs += [params.ipu.phase1, params.ipu.phase2]
    assert params.downstream["squad"].rows.doc_stride == 128
    in_a_row = {"packed": 6 if name.endswith("optimum-packed") else 1, "fast": 3}.get(name.split("-")[-1], 1)
    assert params.downstream["squad"].rows.max_sequences_per_row == in_a_row
    assert params.downstream["squad"].publish.folder == f"published/{name}"
    recipe, pod = RECIPES[name], int(name.split("-pod")[1].split("-")[0])
    for phase in recipe.phases.values():
        assert phase.replicas * len(phase.layers) == pod
    assert recipe.finetune.replicas * len(recipe.finetune.layers) <= pod
    assert recipe.predict[1] * len(recipe.predict[3]) <= pod
    for job in jobs:
        assert "gradient_accumulation_steps" not in job, "derived from the global batch"
    assert "device_iterations" in jobs[0], "what a call costs is shared by its updates"


@pytest.mark.parametrize("name", PORTABLE)
def test_a_preset_for_a_gpu_or_a_cpu_says_what_its_source_says(name: str, tmp_path: Path):
    phases, squad = PORTABLE[name]
    params = resolved(name)
    assert {job.runtime for job in jobs_of(params, tmp_path, {}).values()} == {name.split("-")[0]}
    model, entry = params.model, params.downstream["squad"]
    sizes = (model.hidden_size, model.num_layers, model.num_heads, model.intermediate_size)
    assert sizes == (BASE_MODEL if "-base-" in name else LARGE_MODEL)
    assert (params.device.runtime, entry.publish.folder) == (name.split("-")[0], f"published/{name}")
    assert params.pretrain.enabled == (phases is not None)
    assert (params.base_model.source == "hub") == (phases is None)
    for phase in ("phase1", "phase2") if phases else ():
        shape, batch = getattr(params.pretrain_rows, phase), getattr(params.pretrain, phase)
        sizes = (shape.row_length, shape.max_predictions_per_row, batch.global_batch_size, batch.steps)
        assert phases[phase == "phase2"] == Phase(*sizes, batch.learning_rate, batch.warmup_fraction, batch.schedule)
        assert batch.loss_scaling == 1.0
    rows, finetune = entry.rows, entry.finetune
    assert (rows.row_length, rows.doc_stride, rows.max_sequences_per_row, finetune.loss_scaling) == (384, 128, 1, 1.0)
    sizes = (finetune.global_batch_size, finetune.epochs, finetune.learning_rate, finetune.warmup_fraction)
    assert squad == Squad(*sizes, finetune.weight_decay, finetune.max_grad_norm, finetune.optimizer)


@pytest.mark.parametrize("name", RECIPES)
def test_the_tests_of_the_ipu_runtime_compile_every_job_of_a_preset_as_it_lays_them_out(name: str) -> None:
    params = resolved(name)
    squad = params.downstream["squad"]
    layouts = [x for x in LAYOUTS if name[len("ipu-") :] in x.presets]
    assert sorted(layout.job for layout in layouts) == ["finetune", *RECIPES[name].phases, "predict"]
    for layout in layouts:
        assert sum(layout.layers) == params.model.num_layers
        placed = getattr(squad.ipu if layout.job in ("finetune", "predict") else params.ipu, layout.job)
        assert placed == layout.ipu_config(), layout.job
        if layout.training:
            section = squad.finetune if layout.job == "finetune" else params.pretrain
            batch = squad.finetune if layout.job == "finetune" else getattr(params.pretrain, layout.job)
            optimizer = dataclasses.replace(optimizer_config(section, batch), learning_rate=1e-3)
            assert optimizer == layout.optimizer, layout.job


FAST = ("ipu-base-pod16-run-qa-fast", "ipu-large-pod16-notebook-fast")
SECTION = (ROOT / "docs/ipu.md").read_text(encoding="utf-8").split("## Fine-tuning: memory and speed")[1]


@pytest.mark.parametrize("name", [*FAST, *(name[: -len("-fast")] for name in FAST)])
def test_what_is_expected_follows_from_the_preset(name: str, tmp_path: Path):
    lines = re.findall(rf"^\| `{name}` \|(.*)\|$", SECTION.split("\n## ")[0], re.MULTILINE)
    [line] = [[cell.strip() for cell in line.split("|")] for line in lines]
    params = resolved(name)
    rows = params.downstream["squad"].rows
    packing = SQUAD_PACKING_FACTOR[rows.row_length] if rows.max_sequences_per_row > 1 else 1.0
    model = model_config(params.model, manifest("phase1", 128, 1.0))
    job = jobs_of(params, tmp_path, {"squad/train": packing})["finetune"]
    plan = planned(job, model, packing)
    windows = plan.micro_batches * plan.micro_batch_size * plan.updates_per_call * packing
    between = call_interval(build_program(job, model, plan, RowShape(rows.row_length)))
    sizes = f"{plan.micro_batch_size}, {plan.accumulation}, {plan.replicas}"
    assert line[:4] == [sizes, str(plan.placement.forward_stages), f"{between.likely:.2f}", f"{windows:,.0f}"]
    rate = float(line[4].replace(",", ""))
    assert rate == pytest.approx(windows / between.likely, rel=0.005)
    if line[5]:
        published = float(line[5])
        assert windows / between.high <= published <= windows / between.low
        assert published == pytest.approx(rate, rel=0.05), "what was published comes out"
    else:
        preset = " ".join((ROOT / f"presets/{name}.yaml").read_text(encoding="utf-8").split())
        assert f"Estimated, not measured: {line[4]} sequences/s" in preset


def test_evaluations_of_a_phase_take_a_small_share_of_its_time(tmp_path: Path):
    params = resolved("ipu-base-pod16-examples")
    job = jobs_of(params, tmp_path, {})["phase1"]
    rows, steps = read_manifest(Path(job.rows)), params.pretrain.phase1.steps
    model = model_config(params.model, rows)
    job = dataclasses.replace(job, evaluation=EvaluationConfig("", params.pretrain.evaluate_every_updates or steps))
    line = describe_evaluations(job, model, planned(job, model, 1.0), rows, params.pretrain.evaluate_rows, steps)
    assert line.endswith("% of the training"), "else it says what to do"
