"""`packing: false`: one sequence a row in every stage that makes rows, and everything else as it was."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from ipu_model.distributed.process import StopRequest, lock_run_folder
from ipu_model.train.job_runner import run_job
from tasks.downstream import rows
from tasks.downstream.jobs.entry_jobs import build_predict_job, prediction_figures
from tasks.jobs.device_job import BatchGeometry, Job, JobResult, ScheduleConfig
from tasks.params.entries import find_entry
from tasks.params.schema import validate_params
from tasks.params.strict_yaml import read_yaml
from tasks.pretraining.rows import pretrain_rows
from tasks.stage import artifacts
from tasks.stage.row_folders import Manifest, read_manifest
from tests.optimizers import optimizer_config
from tests.places import ROOT
from tests.tasks.downstream.entries import write_parameters
from tests.tasks.pretraining.row_inputs import (
    WORDS,
    random_texts,
    read_rows,
    write_corpus,
    write_questions,
)
from tests.tasks.tiny_model import write_tiny_model

LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
ROWS = ("phase1", "squad/train", "squad/dev")


def questions(count: int, seed: int) -> list[dict[str, object]]:
    """Contexts of 10 to 90 words whose answer is one of them, so that some make several windows of 64 tokens."""
    draw, made = random.Random(seed), []
    for number in range(count):
        words = [draw.choice(WORDS) for _ in range(draw.randint(5, 60))]
        place = draw.randrange(len(words))
        start = len(" ".join(words[:place])) + (place > 0)
        made.append(
            {
                "id": f"q{number}",
                "title": "",
                "context": " ".join(words),
                "question": " ".join(draw.sample(WORDS, 3)),
                "answers": [{"text": words[place], "answer_start": start}],
            }
        )
    return made


@pytest.fixture(scope="module")
def checkouts(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """The rows of the same text and questions, made by the stages with packing on and off, and one random model."""
    found = {}
    for packing in (True, False):
        root = found[packing] = tmp_path_factory.mktemp(f"packing-{packing}".lower())
        values = read_yaml(ROOT / "params.yaml")
        values["packing"] = packing
        values["downstream"]["squad"]["rows"].update(row_length=64, doc_stride=16, max_question_length=16)
        write_parameters(root, values)
        write_tiny_model(root / artifacts.model_folder("squad"), [*dict.fromkeys([*LETTERS, *WORDS, "."])])
        write_tiny_model(root / artifacts.TOKENIZER, [*dict.fromkeys([*LETTERS, *WORDS, "."])])
        write_corpus(root / artifacts.CORPUS, random_texts(120, sentences=(1, 3)))
        for split, seed in (("train", 1), ("dev", 2)):
            write_questions(root / artifacts.EXAMPLES / "squad" / f"{split}.parquet", questions(40, seed))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(root)
            patch.setenv("PODIUM_WORKERS", "1")
            for stage, name in ((pretrain_rows, "phase1"), (rows, "squad")):
                patch.setattr(sys, "argv", ["stage", name])
                stage.main()
    return found


def manifests(checkouts: dict[bool, Path], name: str) -> tuple[Manifest, Manifest]:
    """With packing, and without."""
    return tuple(read_manifest(checkouts[packing] / artifacts.rows_folder(name)) for packing in (True, False))  # type: ignore[return-value]


@pytest.mark.parametrize("name", ROWS)
def test_off_every_row_holds_one_sequence_and_they_are_the_same_sequences(checkouts: dict[bool, Path], name: str):
    on, off = manifests(checkouts, name)
    assert (off.max_sequences, off.packing_factor) == (1, 1.0)
    assert on.max_sequences == 3
    assert on.packing_factor > 1.1
    assert on.packing_efficiency == pytest.approx(on.packing_factor * off.packing_efficiency)
    assert (on.sequences, on.real_tokens) == (off.sequences, off.real_tokens)
    assert texts(checkouts[True], name) == texts(checkouts[False], name)


def texts(root: Path, name: str) -> list[tuple[int, ...]]:
    """The tokens of every sequence, sorted."""
    columns = read_rows(root / artifacts.rows_folder(name))
    ids, places = columns["input_ids"], columns["sequence_ids"]
    return sorted(
        tuple(ids[row, places[row] == sequence])
        for row in range(len(ids))
        for sequence in range(1, places[row].max() + 1)
    )


def run_here(job: Job) -> JobResult:
    """A device job in this process, with one thread."""
    torch.set_num_threads(1)
    with lock_run_folder(Path(job.run_folder)):
        return run_job(job, lambda event, **fields: None, StopRequest())


def trained(root: Path, name: str, steps: int, batch: int) -> JobResult:
    """A short training on rows, from the random model (its encoder, where the head is another)."""
    kind, head = ("pretrain", "pretraining") if name == "phase1" else ("finetune", "question_answering")
    return run_here(
        Job(
            kind=kind,
            head=head,
            rows=str(root / artifacts.rows_folder(name)),
            output=str(root / "trained" / name),
            run_folder=str(root / "runs" / name),
            geometry=BatchGeometry(batch, 4),
            runtime="cpu",
            precision="fp32",
            init_checkpoint=str(root / artifacts.model_folder("squad")),
            optimizer=optimizer_config("sgd", 1e-3),
            schedule=ScheduleConfig(steps=steps),
        )
    )


@pytest.mark.parametrize("name", ["phase1", "squad/train"])
def test_an_update_has_the_sequences_that_were_stated_with_packing_and_without(checkouts: dict[bool, Path], name: str):
    steps, batch = 6, 24
    on, off = (trained(checkouts[packing], name, steps, batch) for packing in (True, False))
    assert (on.steps, off.steps) == (steps, steps)
    assert off.sequences == steps * batch
    assert (off.plan["rows_per_update"], off.plan["packing_factor"]) == (batch, 1.0)
    # An update has whole rows: it misses what was stated by half a row, or by one in each of its micro-batches.
    factor = on.plan["packing_factor"]
    assert on.plan["sequences_per_update"] == pytest.approx(on.plan["rows_per_update"] * factor, abs=0.05)
    assert -factor / 2 - 0.05 <= on.plan["sequences_per_update"] - batch < factor * off.plan["rows_per_update"] / 4
    assert on.plan["rows_per_update"] < off.plan["rows_per_update"]
    assert on.sequences == pytest.approx(steps * on.plan["sequences_per_update"], rel=0.1)


@pytest.fixture(scope="module")
def predicted(checkouts: dict[bool, Path]) -> dict[bool, JobResult]:
    """Logits of the dev features in `logits.arrow`."""
    params = validate_params(read_yaml(ROOT / "params.yaml"))
    squad, device = find_entry(params, "squad"), params.device.model_copy(update={"micro_batch_size": 4})
    found = {}
    for packing, root in checkouts.items():
        rows, runs = root / artifacts.rows_folder("squad", "dev"), root / "runs" / "predict"
        job = build_predict_job(squad, params, rows, root / "logits.arrow", runs, root, device=device)
        found[packing] = run_here(job)
    return found


def logits(root: Path, column: str) -> list[np.ndarray]:
    table = pa.ipc.open_file(pa.memory_map(str(root / "logits.arrow"))).read_all()
    assert table["feature_id"].to_pylist() == list(range(len(table)))
    return [np.array(values) for values in table[column].to_pylist()]


@pytest.mark.parametrize("column", ["start_logits", "end_logits"])
def test_a_feature_has_the_same_logits_whatever_shares_its_row(
    checkouts: dict[bool, Path], predicted: dict[bool, JobResult], column: str
):
    on, off = (logits(checkouts[packing], column) for packing in (True, False))
    assert predicted[True].sequences == predicted[False].sequences == len(on) == len(off) > 40
    assert np.ptp(np.concatenate(off)) > 1.0, "the model tells tokens apart"
    for packed_logits, alone in zip(on, off, strict=True):
        np.testing.assert_allclose(packed_logits, alone, rtol=2e-4, atol=2e-4)


def test_how_full_the_rows_were_is_among_the_figures(checkouts: dict[bool, Path], predicted: dict[bool, JobResult]):
    for packing in (True, False):
        folder = checkouts[packing] / artifacts.rows_folder("squad", "dev")
        manifest = json.loads((folder / "manifest.json").read_text())
        found = prediction_figures(predicted[packing])
        for name in ("packing_factor", "packing_efficiency"):
            assert found[name] == manifest[name]
