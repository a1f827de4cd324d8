"""The presets of recipes: each number against tables written by hand, each job against the checks of its runtime."""

import dataclasses
import re
from collections import Counter, namedtuple
from pathlib import Path

import pytest

from flows.runs.stopping import STOP_TIMEOUT_S
from ipu_model.core.schedules import BatchSizes
from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.estimates.ipu import build_program, describe_evaluations
from ipu_model.estimates.ipu_time import call_interval
from ipu_model.estimates.shapes import RowShape
from ipu_model.ipu.planning import plan_ipu
from ipu_model.jobs.job import EvaluationConfig
from ipu_model.rows.format import Manifest
from ipu_model.train.checkpoint_writer import ASSUMED_SAVE_SECONDS, SAVE_MARGIN
from tasks.downstream.jobs.entry_jobs import build_finetune_job, build_predict_job
from tasks.jobs.training import model_config, optimizer_config
from tasks.params.entries import find_entry
from tasks.params.overlays import read_preset, resolve
from tasks.params.schema import validate_params
from tasks.pretraining.pretrain import make_pretrain_job
from tasks.stage import artifacts
from tasks.stage.row_folders import read_manifest
from tests.ipu_model.ipu.preset_layouts import LAYOUTS
from tests.places import ROOT

Row = namedtuple(
    "Row",
    "row_length masks global_batch micro_batch replicas accumulation length learning_rate warmup loss_scaling layers "
    "forward_stages updates_per_call",
)
"""One job: the numbers a recipe is known by. Masked positions in a row, 0 in fine-tuning; updates of a phase, epochs
of fine-tuning; encoder layers on each IPU; updates with one learning rate."""
TABLE = """
base-pod16-optimum          128 32  65536 32  4  512 10500       .006    .28 16384         0-4-4-4 5  1
base-pod16-optimum          512 96  16384  8  4  512  2038    .002828   .128   128         0-4-4-4 5  1
base-pod16-optimum          384  0    128  2  4   16     3     .00007     .1    64         0-4-4-4 4  1 16 4  5 0-4-4-4
large-pod16-optimum         128 32  65536  8  4 2048 10500       .006    .28 32768         3-7-7-7 5  1
large-pod16-optimum         512 96  16384  2  4 2048  2038    .002828   .128 16384         3-7-7-7 5  1
large-pod16-optimum         384  0    256  1  4   64     2      .0002      0     1         3-7-7-7 4  1  2 4  4 3-7-7-7
large-pod64-optimum         128 32  65536  8 16  512 10550       .006    .28 32768         3-7-7-7 5  1
large-pod64-optimum         512 96  16384  2 16  512  2038    .002828   .128 16384         3-7-7-7 5  1
large-pod64-optimum         384  0    256  1  4   64     2      .0002      0     1         3-7-7-7 4  1  2 4  4 3-7-7-7
# 88524 features x 3 epochs / 1035 updates = 256.6
base-pod16-run-qa           384  0    256  2  4   32     3     .00006     .1    64         0-4-4-4 4  1 16 4  5 0-4-4-4
large-pod16-notebook        384  0    256  1  4   64     2      .0002      0     1         3-7-7-7 4  1  2 4  4 3-7-7-7
# 64 rows of 2.2 windows are 140.8; 140 / 2.2 / 2 = 31.8
base-pod4-optimum-packed    512  0    140  2  1   32     3     .00009    .25    64         0-4-4-4 4 32  8 1 64 0-4-4-4
# 256 / 2.18 windows in a row / (4 x 8) = 3.7, and / (2 x 4) = 14.7
base-pod16-run-qa-fast      384  0    256  4  8    4     3     .00006     .1    64             6-6 2  8 16 8  4     6-6
large-pod16-notebook-fast   384  0    256  2  4   15     2      .0002      0     1         3-7-7-7 4  8 20 8  4   12-12
# graphcore/examples, PyTorch
base-pod16-examples         128 20  65536 32  4  512  7038       .006    .28 16384         0-4-4-4 5  1
base-pod16-examples         512 76  16384  8  4  512  2137    .002828   .128   128         0-4-4-4 5  1
base-pod16-examples         384  0     32  1  4    8     3     .00006    .25    64         0-4-4-4 4  2 20 8  4     6-6
base-pod4-examples          128 20  65536 32  1 2048  7038       .006    .28 16384         0-4-4-4 5  1
base-pod4-examples          512 76  16384  8  1 2048  2137    .002828   .128   128         0-4-4-4 5  1
base-pod4-examples          384  0     32  1  1   32     3     .00006    .25    64         0-4-4-4 4  2 20 2  4     6-6
large-pod16-examples        128 20  65536  8  4 2048  7038       .006    .28  4096         3-7-7-7 5  1
large-pod16-examples        512 76  16384  2  4 2048  2137    .002828   .128  8192         3-7-7-7 5  1
large-pod16-examples        384  0    512  2  4   64     3     .00005     .1    64         3-7-7-7 4  1 20 8  4   12-12
large-pod16-examples-8ipu   128 20  65536  8  4 2048  7038       .006    .28  4096         3-7-7-7 5  1
large-pod16-examples-8ipu   512 76  16384  2  4 2048  2137    .002828   .128  8192         3-7-7-7 5  1
large-pod16-examples-8ipu   384  0    256  4  2   32     3     .00005     .1    64 2-3-3-3-3-3-3-4 8  2 20 8  4   12-12
large-pod16-examples-als    128 20  65536  8  4 2048  7038       .006    .28     1         3-7-7-7 5  1
large-pod16-examples-als    512 76  16384  2  4 2048  2137    .002828   .128  8192         3-7-7-7 5  1
large-pod16-examples-als    384  0    512  2  4   64     3     .00005     .1    64         3-7-7-7 4  1 20 8  4   12-12
# 65536 / 1.17 sequences in a row / 32 rows = 1750.4; 16384 / 2.0 / 8 = 1024
large-pod16-examples-packed 128 22  65536  8  4 1750  7038       .006    .28  4096         3-7-7-7 5  1
large-pod16-examples-packed 512 78  16384  2  4 1024  2137    .002828   .128  8192         3-7-7-7 5  1
large-pod16-examples-packed 384  0    512  2  4   64     3     .00005     .1    64         3-7-7-7 4  1 20 8  4   12-12
large-pod4-examples         128 20  65536  8  1 8192  7038       .006    .28  4096         3-7-7-7 5  1
large-pod4-examples         512 76  16384  2  1 8192  2137    .002828   .128  8192         3-7-7-7 5  1
large-pod4-examples         384  0    512  2  1  256     3     .00005     .1    64         3-7-7-7 4  1 20 2  4   12-12
# 65536 / 1.17 / 8 = 7001.7; 16384 / 2.0 / 2 = 4096
large-pod4-examples-packed  128 22  65536  8  1 7002  7038       .006    .28  4096         3-7-7-7 5  1
large-pod4-examples-packed  512 78  16384  2  1 4096  2137    .002828   .128  8192         3-7-7-7 5  1
large-pod4-examples-packed  384  0    512  2  1  256     3     .00005     .1    64         3-7-7-7 4  1 20 2  4   12-12
large-pod64-examples        128 20  65536  8 16  512  7038       .006    .28 32768         3-7-7-7 5  1
large-pod64-examples        512 76  16384  2 16  512  2137    .002828   .128 16384         3-7-7-7 5  1
large-pod64-examples        384  0    512  2  4   64     3     .00005     .1    64         3-7-7-7 4  1 20 8  4   12-12
large-pod64-examples-als    128 20  65536  8 16  512  7038       .006    .28     1         3-7-7-7 5  1
large-pod64-examples-als    512 76  16384  2 16  512  2137    .002828   .128 16384         3-7-7-7 5  1
large-pod64-examples-als    384  0    512  2  4   64     3     .00005     .1    64         3-7-7-7 4  1 20 8  4   12-12
# 65536 / 1.17 / 128 = 437.6; 16384 / 2.0 / 32 = 256
large-pod64-examples-packed 128 22  65536  8 16  438  7038       .006    .28 32768         3-7-7-7 5  1
large-pod64-examples-packed 512 78  16384  2 16  256  2137    .002828   .128 16384         3-7-7-7 5  1
large-pod64-examples-packed 384  0    512  2  4   64     3     .00005     .1    64         3-7-7-7 4  1 20 8  4   12-12
# graphcore/examples, TensorFlow 2
base-pod16-tf2-384          128 20  65280 32  4  510  7059       .006    .28  4096         0-4-4-4 5  1
base-pod16-tf2-384          384 56  16320  8  4  510  2098    .002828   .129  4096         0-4-4-4 5  1
base-pod16-tf2-384          384  0    320  4  4   20     3       .001     .3     1         0-4-4-4 5  1  4 4  5 0-4-4-4
base-pod16-tf2-512          128 20  65280 32  4  510  7059       .006    .28  4096         0-4-4-4 5  1
base-pod16-tf2-512          512 76  16320  8  4  510  2098    .002828   .129  4096         0-4-4-4 5  1
base-pod16-tf2-512          384  0    320  4  4   20     3       .001     .3     1         0-4-4-4 5  1  4 4  5 0-4-4-4
base-pod4-tf2-384           128 20  65280 32  1 2040  7059       .006    .28  4096         0-4-4-4 5  1
base-pod4-tf2-384           384 56  16320  8  1 2040  2098    .002828   .129  4096         0-4-4-4 5  1
base-pod4-tf2-384           384  0    320  4  1   80     3       .001     .3     1         0-4-4-4 5  1  4 1  5 0-4-4-4
base-pod4-tf2-512           128 20  65280 32  1 2040  7059       .006    .28  4096         0-4-4-4 5  1
base-pod4-tf2-512           512 76  16320  8  1 2040  2098    .002828   .129  4096         0-4-4-4 5  1
base-pod4-tf2-512           384  0    320  4  1   80     3       .001     .3     1         0-4-4-4 5  1  4 1  5 0-4-4-4
large-pod16-tf2-384         128 20  65280  8  4 2040  7059       .006    .28 32768         3-7-7-7 5  1
large-pod16-tf2-384         384 56  16320  2  4 2040  2098    .002828   .129 32768         3-7-7-7 5  1
large-pod16-tf2-384         384  0    320  2  4   40     3       .001     .3     1         3-7-7-7 5  1  2 4  5 3-7-7-7
large-pod16-tf2-512         128 20  65280  8  4 2040  7059       .006    .28 32768         3-7-7-7 5  1
large-pod16-tf2-512         512 76  16320  2  4 2040  2098    .002828   .129 32768         2-7-7-8 5  1
large-pod16-tf2-512         384  0    320  2  4   40     3       .001     .3     1         3-7-7-7 5  1  2 4  5 3-7-7-7
large-pod4-tf2-384          128 20  65280  8  1 8160  7059       .006    .28 32768         3-7-7-7 5  1
large-pod4-tf2-384          384 56  16320  2  1 8160  2098    .002828   .129 32768         3-7-7-7 5  1
large-pod4-tf2-384          384  0    320  2  1  160     3       .001     .3     1         3-7-7-7 5  1  2 1  5 3-7-7-7
large-pod4-tf2-512          128 20  65280  8  1 8160  7059       .006    .28 32768         3-7-7-7 5  1
large-pod4-tf2-512          512 76  16320  2  1 8160  2098    .002828   .129 32768         2-7-7-8 5  1
large-pod4-tf2-512          384  0    320  2  1  160     3       .001     .3     1         3-7-7-7 5  1  2 1  5 3-7-7-7
large-pod64-tf2-384         128 20 130560  8 16 1020  3529       .006    .28 32768         3-7-7-7 5  1
large-pod64-tf2-384         384 56  16320  2 16  510  2098    .002828   .129 32768         3-7-7-7 5  1
large-pod64-tf2-384         384  0    320  2  4   40     3       .001     .3     1         3-7-7-7 5  1  2 4  5 3-7-7-7
base-pod16-paddle           128 20  65536 32  4  512  7038       .006 .28417   512         0-4-4-4 5  1
base-pod16-paddle           384 56  16384  8  4  512  2137 .002828427 .12822   128         0-4-4-4 5  1
base-pod16-paddle           384  0    128  2  4   16     4    .000056 .07514   256             6-6 2  4  2 4  4     6-6
"""
"""A preset on IPUs, and the fields of Row in their order; of fine-tuning then those of `predict`: rows in one
micro-batch, replicas, device iterations, layers on each IPU."""
Recipe = namedtuple("Recipe", "phases finetune predict")


def read_table():
    jobs = {}
    for line in TABLE.strip().splitlines():
        preset, *words = line.split()
        if preset != "#":
            values = [tuple(map(int, word.split("-"))) if "-" in word else float(word) for word in words]
            jobs.setdefault(f"ipu-{preset}", []).append((Row(*values[:13]), tuple(values[13:])))
    return {
        name: Recipe({f"phase{number}": phase for number, (phase, _) in enumerate(phases, 1)}, *last)
        for name, (*phases, last) in jobs.items()
    }


RECIPES = read_table()

Phase = namedtuple("Phase", "row_length masks global_batch updates learning_rate warmup schedule", defaults=("linear",))
"""A phase of pre-training on a GPU or CPU."""
Squad = namedtuple(
    "Squad",
    "global_batch epochs learning_rate warmup weight_decay clip optimizer",
    defaults=(0.01, None, "adamw"),
)
"""Fine-tuning on windows of 384 tokens."""
OPTIMUM = (Phase(128, 32, 65536, 10500, 0.006, 0.28), Phase(512, 96, 16384, 2038, 0.002828, 0.128))
EXAMPLES = (Phase(128, 20, 65536, 7038, 0.006, 0.28), Phase(512, 76, 16384, 2137, 0.002828, 0.128))
EXAMPLES_PACKED = (Phase(128, 22, 65536, 7038, 0.006, 0.28), Phase(512, 78, 16384, 2137, 0.002828, 0.128))
TF2 = Phase(128, 20, 65280, 7059, 0.006, 0.28)
TF2_384, TF2_512 = Phase(384, 56, 16320, 2098, 0.002828, 0.129), Phase(512, 76, 16320, 2098, 0.002828, 0.129)
TF2_SQUAD = Squad(320, 3, 0.001, 0.3, optimizer="lamb")
PADDLE = (Phase(128, 20, 65536, 7038, 0.006, 0.28417), Phase(384, 56, 16384, 2137, 0.002828427, 0.12822))
PADDLE_SQUAD = Squad(128, 4, 5.6e-5, 0.07514, weight_decay=0.0)
POPXL = Phase(128, 20, 2048, 225000, 5.3e-4, 0.00625)
RUN_QA = Squad(12, 2, 3e-5, 0.0, weight_decay=0.0, clip=1.0)
TokenPhase = namedtuple(
    "TokenPhase",
    "row_length tokens batch micro_batch learning_rate warmup_tokens schedule theta first_batch growing_tokens",
    defaults=(None, 0),
)
"""A phase of a recipe that counts billions of tokens, in full batches of packed rows: the base of the global rotation,
where it changes, and the tokens in which the batch grows from the first."""
TOKENS = {
    "modernbert-base": (
        (
            TokenPhase(1024, 1719, 4608, 96, 8e-4, 3, "constant", 1e4, 768, 50),
            TokenPhase(8192, 250, 576, 12, 3e-4, 0, "constant", 16e4),
            TokenPhase(8192, 50, 576, 12, 3e-4, 0, "1-sqrt", None),
        ),
        1e-5 / 8e-4,
    ),
    "modernbert-large": (
        (
            TokenPhase(1024, 900, 4928, 56, 5e-4, 2, "constant", 1e4, 448, 10),
            TokenPhase(1024, 800, 4928, 56, 5e-5, 0, "constant", None),
            TokenPhase(8192, 250, 616, 7, 5e-5, 0, "constant", 16e4),
            TokenPhase(8192, 50, 624, 6, 5e-5, 0, "1-sqrt", None),
        ),
        1e-6 / 5e-5,
    ),
    "modernbert-bioclinical": (
        (
            TokenPhase(8192, 160.453, 576, 12, 3e-4, 0, "constant", None),
            TokenPhase(8192, 8.247337, 576, 12, 3e-4, 0, "1-sqrt", None),
        ),
        1e-5 / 3e-4,
    ),
}
"""Phases, and the weight decay of AdamW: that of the source by its learning rate."""

PORTABLE = {
    "cuda-base-optimum": (OPTIMUM, Squad(128, 3, 7e-5, 0.1)),
    "cuda-large-optimum": (OPTIMUM, Squad(256, 2, 2e-4, 0.0, weight_decay=0.0)),
    "cuda-base-examples": (EXAMPLES, Squad(32, 3, 6e-5, 0.25)),
    "cuda-large-examples": (EXAMPLES, Squad(512, 3, 5e-5, 0.1)),
    "cuda-large-examples-packed": (EXAMPLES_PACKED, Squad(512, 3, 5e-5, 0.1)),
    "cuda-base-tf2-384": ((TF2, TF2_384), TF2_SQUAD),
    "cuda-base-tf2-512": ((TF2, TF2_512), TF2_SQUAD),
    "cuda-large-tf2-384": ((TF2, TF2_384), TF2_SQUAD),
    "cuda-large-tf2-512": ((TF2, TF2_512), TF2_SQUAD),
    "cuda-base-paddle": (PADDLE, PADDLE_SQUAD),
    "cpu-base-paddle": (PADDLE, PADDLE_SQUAD),
    "cuda-base-popxl": ((POPXL, Phase(512, 76, 8192, 6250, 5.3e-4, 0.00625)), Squad(128, 3, 6e-5, 0.1, clip=1.0)),
    "cuda-large-popxl": ((POPXL, Phase(512, 76, 2048, 6250, 5.3e-4, 0.00625)), Squad(128, 2, 6e-5, 0.1, clip=1.0)),
    # 8192 and 4096 sequences on each of 8 GPUs; SQuAD 4 on each
    "cuda-large-nvidia": (
        (
            Phase(128, 20, 65536, 7038, 0.006, 0.2843, "square_root"),
            Phase(512, 80, 32768, 1563, 0.004, 0.128, "square_root"),
        ),
        Squad(32, 2, 3e-5, 0.1, clip=1.0),
    ),
    "cuda-base-run-qa": (None, RUN_QA),
    "cpu-base-run-qa": (None, RUN_QA),
}

PRESETS = ROOT / "presets"
VOCABULARY = 30522
SQUAD_PACKING_FACTOR = {384: 2.18, 512: 2.2}
"""Windows in a row. 384 tokens: what best-fit packing of SQuAD's 88,641 features reaches with 3 in a row or more
(LPFHP of graphcore/examples:tutorials/blogs_code/packedBERT on their histogram); 512: Optimum's packed notebook."""


def resolved(name):
    return validate_params(resolve({}, name, [], PRESETS))


def shape_of(params):
    model = params.model
    return model.hidden_size, model.num_layers, model.num_heads, model.intermediate_size


def manifest(name, row_length, factor):
    rows = 1_000_000
    kind = "question_answering" if name.startswith("squad") else "pretrain"
    return Manifest(kind, row_length, 3, 20, VOCABULARY, "0", 0, rows, round(rows * factor), rows, {})


def planned(job, model, factor):
    """The plan of the IPU runtime, which refuses what cannot run; `say` fails on a key it had to translate."""

    def say(text):
        assert "ipu_config" not in text, text

    return plan_ipu(job, model, factor, True, PopRunInstances(), say)


PACKING_FACTOR = {128: 1.17, 384: 1.7, 512: 2.0}
"""Sequences in a row on Wikipedia, at most 3: graphcore/examples:nlp/bert/pytorch/configs_pretraining.yml."""
BASE_MODEL = (768, 12, 12, 3072)
LARGE_MODEL = (1024, 24, 16, 4096)


def layers_of(plan):
    counts = Counter(plan.placement.layers)
    return tuple(counts[ipu] for ipu in range(plan.placement.ipus_per_replica))


def jobs_of(params, root, factors):
    squad, phases = find_entry(params, "squad"), params.pretrain_rows
    lengths = {phase: getattr(phases, phase).row_length for phase in ("phase1", "phase2")}
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
def test_a_preset_says_what_its_source_says(name, tmp_path):
    recipe, params, pod = RECIPES[name], resolved(name), int(name.split("-pod")[1].split("-")[0])
    rows, squad, ipu = params.pretrain_rows, params.downstream["squad"], params.ipu
    assert (params.device.runtime, params.device.precision) == ("ipu", "fp16")
    assert shape_of(params) == (BASE_MODEL if "-base-" in name else LARGE_MODEL)
    assert "device_iterations" in squad.ipu.finetune, "what a call costs is shared by its updates"
    for layout in (squad.ipu.finetune, *((ipu.phase1, ipu.phase2) if recipe.phases else ())):
        assert "gradient_accumulation_steps" not in layout, "derived from the global batch"
    packed = {phase: PACKING_FACTOR[getattr(rows, phase).row_length] for phase in recipe.phases} or {
        "squad/train": SQUAD_PACKING_FACTOR[squad.rows.row_length]
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
        assert expected.replicas * len(expected.layers) == pod
        assert (params.pretrain.optimizer, params.pretrain.max_grad_norm) == ("lamb", None), "PopTorch's LAMB clips not"
    plan = planned(jobs["finetune"], model, factors.get("squad/train", 1.0))
    assert squad.finetune.schedule == ("cosine" if "optimum-packed" in name else "linear")
    in_a_row = {"packed": 6 if name.endswith("optimum-packed") else 1, "fast": 3}.get(name.split("-")[-1], 1)
    assert (squad.rows.doc_stride, squad.rows.max_sequences_per_row) == (128, in_a_row)
    assert (squad.finetune.max_grad_norm, squad.publish.folder) == (None, f"published/{name}")
    assert recipe.finetune.replicas * len(recipe.finetune.layers) <= pod
    assert row(jobs["finetune"], plan, squad.rows.row_length, 0, squad.finetune.epochs) == recipe.finetune
    assert seconds_to_stop(jobs["finetune"], plan, model, squad.rows.row_length, 0) < STOP_TIMEOUT_S
    plan = planned(jobs["predict"], model, 1.0)
    assert (plan.micro_batch_size, plan.replicas, plan.updates_per_call, layers_of(plan)) == recipe.predict
    assert plan.pipelined_inference
    assert plan.replicas * len(layers_of(plan)) <= pod


def test_mosaic_says_what_its_source_says(tmp_path):
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
    assert shape_of(params) == BASE_MODEL
    assert (model.hidden_dropout, model.attention_dropout, model.layer_norm_eps) == (0.1, 0.0, 1e-12)


@pytest.mark.parametrize("name", TOKENS)
def test_a_preset_of_modernbert_has_the_tokens_of_its_source(name):
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
    assert shape_of(params) == ((1024, 28, 16, 2624) if "large" in name else (768, 22, 12, 1152))
    assert (params.model.max_positions, params.model.layer_norm_eps) == (8192, 1e-5)


def seconds_to_stop(job, plan, model, row_length, masks):
    """From SIGTERM to the end of a training on a POD of Mk2: the running call, and a checkpoint on a slow disk."""
    seconds = call_interval(build_program(job, model, plan, RowShape(row_length, masks))).likely
    return seconds + SAVE_MARGIN * ASSUMED_SAVE_SECONDS


def test_a_workers_service_waits_for_a_training_as_long_as_podium_does():
    unit = (ROOT / "deploy" / "podium-worker@.service").read_text(encoding="utf-8")
    assert f"\nTimeoutStopSec={STOP_TIMEOUT_S}\n" in unit


def row(job, plan, row_length, masks, length):
    sizes = (job.geometry.global_batch_size, plan.micro_batch_size, plan.replicas, plan.accumulation, length)
    rates = (job.optimizer.learning_rate, job.schedule.warmup_fraction, job.optimizer.loss_scaling)
    return Row(row_length, masks, *sizes, *rates, layers_of(plan), plan.placement.forward_stages, plan.updates_per_call)


@pytest.mark.parametrize("name", PORTABLE)
def test_a_preset_for_a_gpu_or_a_cpu_says_what_its_source_says(name, tmp_path):
    phases, squad = PORTABLE[name]
    params = resolved(name)
    assert {job.runtime for job in jobs_of(params, tmp_path, {}).values()} == {name.split("-")[0]}
    entry = params.downstream["squad"]
    assert shape_of(params) == (BASE_MODEL if "-base-" in name else LARGE_MODEL)
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
def test_the_tests_of_the_ipu_runtime_compile_every_job_of_a_preset_as_it_lays_them_out(name):
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
def test_what_is_expected_follows_from_the_preset(name, tmp_path):
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


def test_evaluations_of_a_phase_take_a_small_share_of_its_time(tmp_path):
    params = resolved("ipu-base-pod16-examples")
    job = jobs_of(params, tmp_path, {})["phase1"]
    rows, steps = read_manifest(Path(job.rows)), params.pretrain.phase1.steps
    model = model_config(params.model, rows)
    job = dataclasses.replace(job, evaluation=EvaluationConfig("", params.pretrain.evaluate_every_updates or steps))
    line = describe_evaluations(job, model, planned(job, model, 1.0), rows, params.pretrain.evaluate_rows, steps)
    assert line.endswith("% of the training"), "else it says what to do"
