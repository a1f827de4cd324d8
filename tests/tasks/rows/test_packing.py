"""Packing: best fit, nothing lost, and `packing: false` changes only the number of sequences in a row."""

import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tasks.downstream import rows
from tasks.downstream.jobs.entry_jobs import build_predict_job, prediction_figures
from tasks.downstream.squad.rows import make_features
from tasks.jobs.device_job import BatchGeometry, Job, JobResult, ScheduleConfig
from tasks.params.entries import find_entry
from tasks.params.schema import validate_params
from tasks.params.strict_yaml import read_yaml
from tasks.pretraining.rows import pretrain_rows
from tasks.rows.packing import pack_sequences, plan_packs
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.stage.row_folders import Manifest, read_manifest
from tasks.vocabulary.encoding import load_tokenizer
from tests.optimizers import optimizer_config
from tests.places import ROOT
from tests.tasks.downstream.entries import write_parameters
from tests.tasks.downstream.texts.glue_checkout import device_job_here
from tests.tasks.pretraining.row_inputs import (
    WORDS,
    bert_tokenizer,
    random_texts,
    read_rows,
    squad_questions,
    write_corpus,
    write_questions,
)
from tests.tasks.tiny_model import write_tiny_model


def histogram(lengths: list[int], row_length: int) -> list[int]:
    counts = Counter(lengths)
    return [counts[length] for length in range(row_length + 1)]


@pytest.mark.parametrize(
    ("lengths", "most", "plan"),
    [
        # 10 opens a row; 7 and 6 open rows with 5 and 6 left; the 5 fits 7 + 5 exactly; the 3 goes to the
        # row with 6 left, not to an empty one; the two 2s: one fills the 10, one goes next to 6 + 3.
        ([10, 7, 6, 5, 3, 2, 2], 3, [(1, (6, 3, 2)), (1, (7, 5)), (1, (10, 2))]),
        # seven of 4: three a row, one left over
        ([4] * 7, 3, [(1, (4,)), (2, (4, 4, 4))]),
        ([4] * 7, 2, [(1, (4,)), (3, (4, 4))]),
        # five rows of one 8; three 2s: the first row takes two of them, the next the third
        ([8] * 5 + [2] * 3, 3, [(1, (8, 2)), (1, (8, 2, 2)), (3, (8,))]),
        ([3, 3, 2], 1, [(1, (2,)), (2, (3,))]),
        ([], 3, []),
    ],
)
def test_each_length_goes_into_the_fullest_row_that_has_room(lengths: list[int], most: int, plan: list[Any]) -> None:
    assert sorted(plan_packs(histogram(lengths, 12), 12, most)) == plan


@pytest.mark.parametrize(
    ("lengths", "most", "packs"),
    [
        ([6, 4, 6, 6, 4], 2, [[0, 2], [3, 1], [4, -1]]),
        ([2, 3, 3], 1, [[1], [2], [0]]),
        ([], 3, []),
    ],
)
def test_sequences_of_equal_length_are_taken_in_their_order(lengths: list[int], most: int, packs: list[Any]) -> None:
    assert pack_sequences(np.array(lengths, dtype=int), 12, most).tolist() == packs


@pytest.mark.parametrize("seed", range(40))
def test_every_sequence_lies_in_one_row_and_no_row_is_overfull(seed: int) -> None:
    draw = random.Random(seed)
    row_length, max_sequences = draw.randint(1, 60), draw.randint(1, 6)
    shortest = draw.randint(1, row_length)
    lengths = np.array([draw.randint(shortest, row_length) for _ in range(draw.randint(1, 300))])
    packs = pack_sequences(lengths, row_length, max_sequences)
    assert packs.shape[1] == max_sequences
    assert sorted(packs[packs >= 0].tolist()) == list(range(len(lengths)))
    assert np.where(packs >= 0, lengths[packs], 0).sum(axis=1).max() <= row_length
    # present sequences come first, and no row is empty
    assert (packs[:, 0] >= 0).all()
    assert (np.diff((packs >= 0).astype(int), axis=1) <= 0).all()


@pytest.mark.parametrize("seed", range(20))
def test_the_plan_equals_best_fit_decreasing_one_sequence_at_a_time(seed: int) -> None:
    draw = random.Random(seed)
    row_length, max_sequences = draw.randint(4, 40), draw.randint(1, 4)
    lengths = sorted((draw.randint(1, row_length) for _ in range(200)), reverse=True)
    rows: list[list[int]] = []
    for length in lengths:
        fits = [row for row in rows if len(row) < max_sequences and sum(row) + length <= row_length]
        if fits:
            max(fits, key=sum).append(length)
        else:
            rows.append([length])
    plan = plan_packs(histogram(lengths, row_length), row_length, max_sequences)
    # Ties between rows of equal room and different contents may fall out differently: compare the number.
    assert abs(sum(count for count, _ in plan) - len(rows)) <= 0.03 * len(rows)
    assert Counter(length for count, row in plan for length in row * count) == Counter(lengths)


@pytest.mark.parametrize(
    ("lengths", "message"), [([3, 13], "13 tokens does not fit into a row of 12"), ([0], "without tokens")]
)
def test_what_cannot_lie_in_a_row_is_refused(lengths: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pack_sequences(np.array(lengths), 12, 3)


def test_real_question_features_pack_to_97_percent_in_milliseconds(tmp_path: Path) -> None:
    questions = squad_questions("new-wiki-train.json") + squad_questions("new-wiki-dev.json")
    features = make_features(
        load_tokenizer(bert_tokenizer(tmp_path)),
        [question["question"] for question in questions],
        [question["context"] for question in questions],
        row_length=384,
        doc_stride=128,
        max_question_length=64,
    )
    lengths = features.lengths
    assert len(lengths) == 8034  # counted by Hugging Face's run_qa preparation too
    used = {limit: lengths.sum() / (len(pack_sequences(lengths, 384, limit)) * 384) for limit in (1, 2, 3)}
    assert used[1] == pytest.approx(0.447, abs=0.005)
    assert used[2] > 0.87
    assert used[3] > 0.97
    # The cost is in the histogram: ten times the sequences need no more strategies.
    assert len(plan_packs(np.bincount(lengths) * 10, 384, 3)) < 2 * len(plan_packs(np.bincount(lengths), 384, 3))


LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
ROWS = ("phase1", "squad/train", "squad/dev")


def questions(count: int, seed: int) -> list[dict[str, object]]:
    """Contexts of 10 to 90 words whose answer is one of them, so that some make several windows of 64 tokens."""
    draw, made = random.Random(seed), []
    for number in range(count):
        words = [draw.choice(WORDS) for _ in range(draw.randint(5, 60))]
        place = draw.randrange(len(words))
        start = len(" ".join(words[:place])) + (place > 0)
        answers, asked = [{"text": words[place], "answer_start": start}], " ".join(draw.sample(WORDS, 3))
        own = {"id": f"q{number}", "title": "", "context": " ".join(words), "question": asked, "answers": answers}
        made.append(own)
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


def trained(root: Path, name: str, steps: int, batch: int) -> JobResult:
    """A short training on rows, from the random model (its encoder, where the head is another)."""
    kind, head = ("pretrain", "pretraining") if name == "phase1" else ("finetune", "question_answering")
    return device_job_here(
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
    params = validate_params(read_yaml(ROOT / "params.yaml"))
    squad, device = find_entry(params, "squad"), params.device.model_copy(update={"micro_batch_size": 4})
    found = {}
    for packing, root in checkouts.items():
        rows, runs = root / artifacts.rows_folder("squad", "dev"), root / "runs" / "predict"
        job = build_predict_job(squad, params, rows, root / "logits.arrow", runs, root, device=device)
        found[packing] = device_job_here(job)
    return found


def logits(root: Path, column: str) -> list[np.ndarray]:
    table = pa.ipc.open_file(pa.memory_map(str(root / "logits.arrow"))).read_all()
    assert table["feature_id"].to_pylist() == list(range(len(table)))
    return [np.array(values) for values in table[column].to_pylist()]


@pytest.mark.parametrize("column", ["start_logits", "end_logits"])
def test_logits_do_not_depend_on_the_row(checkouts: dict[bool, Path], predicted: dict[bool, JobResult], column: str):
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
