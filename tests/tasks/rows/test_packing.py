import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tasks.downstream.squad.rows import make_features
from tasks.rows.packing import pack_sequences, plan_packs
from tasks.stage.errors import InputError
from tasks.vocabulary.encoding import load_tokenizer
from tests.tasks.pretraining.row_inputs import bert_tokenizer, squad_questions


def histogram(lengths: list[int], row_length: int) -> list[int]:
    counts = Counter(lengths)
    return [counts[length] for length in range(row_length + 1)]


def test_each_length_goes_into_the_fullest_row_that_has_room() -> None:
    # 10 opens a row; 7 and 6 open rows with 5 and 6 left; the 5 fits 7 + 5 exactly; the 3 goes to the
    # row with 6 left, not to an empty one; the two 2s: one fills the 10, one goes next to 6 + 3.
    plan = plan_packs(histogram([10, 7, 6, 5, 3, 2, 2], 12), 12, 3)
    assert sorted(plan) == [(1, (6, 3, 2)), (1, (7, 5)), (1, (10, 2))]


def test_equal_lengths_share_rows_among_themselves() -> None:
    # Seven of 4 in rows of 12: three a row, one left over.
    assert sorted(plan_packs(histogram([4] * 7, 12), 12, 3)) == [(1, (4,)), (2, (4, 4, 4))]
    assert sorted(plan_packs(histogram([4] * 7, 12), 12, 2)) == [(1, (4,)), (3, (4, 4))]


def test_part_of_a_group_of_rows_is_filled_when_sequences_run_out() -> None:
    # Five rows of one 8; three 2s: the first row takes two of them, the next the third.
    assert sorted(plan_packs(histogram([8] * 5 + [2] * 3, 12), 12, 3)) == [(1, (8, 2)), (1, (8, 2, 2)), (3, (8,))]


def test_one_sequence_per_row_switches_packing_off() -> None:
    assert sorted(plan_packs(histogram([3, 3, 2], 12), 12, 1)) == [(1, (2,)), (2, (3,))]
    assert sorted(pack_sequences(np.array([2, 3, 3]), 12, 1).tolist()) == [[0], [1], [2]]


def test_sequences_of_equal_length_are_taken_in_their_order() -> None:
    assert pack_sequences(np.array([6, 4, 6, 6, 4]), 12, 2).tolist() == [[0, 2], [3, 1], [4, -1]]


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


def test_no_sequences_make_no_rows() -> None:
    assert plan_packs([0] * 13, 12, 3) == []
    assert pack_sequences(np.array([], dtype=int), 12, 3).shape == (0, 3)


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
