"""Recipes resolved, and the jobs that follow."""

from __future__ import annotations

from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.ipu.planning import IpuPlan, plan_ipu
from ipu_model.jobs.job import Job
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import Manifest
from tasks.params.overlays import resolve
from tasks.params.schema import Params, validate_params
from tests.places import ROOT

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
    return Manifest(
        kind=kind,
        row_length=row_length,
        max_sequences=3,
        max_predictions=20,
        vocab_size=VOCABULARY,
        tokenizer_sha256="0",
        seed=0,
        rows=rows,
        sequences=round(rows * factor),
        real_tokens=rows,
        files={},
    )


def planned(job: Job, model: ModelConfig, factor: float) -> IpuPlan:
    """The plan of the IPU runtime, which refuses what cannot run; `say` fails on a key it had to translate."""

    def say(text: str) -> None:
        assert "ipu_config" not in text, text

    return plan_ipu(job, model, factor, True, PopRunInstances(), say)
