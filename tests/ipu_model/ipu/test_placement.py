"""Placement by hand: which block is on which IPU, how many stages that makes, and the explicit TF2 layout."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import pytest

from ipu_model.core.errors import ConfigError
from ipu_model.ipu.placement import expand_layers, place_by_layers, place_by_stages
from ipu_model.ipu.planning import check_ipu_count, check_serialization, derive_accumulation

BASE = (1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3)
LARGE = (0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3)
EIGHT = (0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6, 7, 7, 7, 7)
BASE_EIGHT = (1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 7)


@pytest.mark.parametrize(
    ("head", "layout", "layers", "pooler", "heads", "stages"),
    [
        ("pretraining", [0, 4, 4, 4], BASE, 0, 0, 5),
        ("pretraining", [3, 7, 7, 7], LARGE, 0, 0, 5),
        ("pretraining", [2, 3, 3, 3, 3, 3, 3, 4], EIGHT, 0, 0, 9),
        ("question_answering", [0, 4, 4, 4], BASE, None, 3, 4),
        ("question_answering", [0, 2, 2, 2, 2, 2, 1, 1], BASE_EIGHT, None, 7, 8),
        ("sequence_classification", [0, 4, 4, 4], BASE, 3, 3, 4),
        ("pretraining", [2], (0, 0), 0, 0, 1),
        ("pretraining", [1, 1], (0, 1), 0, 0, 3),
    ],
)
def test_the_blocks_of_a_layout_are_where_the_hand_worked_table_says(
    head: str, layout: List[int], layers: Tuple[int, ...], pooler: Optional[int], heads: int, stages: int
) -> None:
    found = place_by_layers(head, len(layers), layout, len(layout))
    assert (found.embeddings, found.layers, found.pooler, found.heads) == (0, layers, pooler, heads)
    assert found.order == (0, *layers, *([] if pooler is None else [pooler]), heads)
    assert (found.forward_stages, found.training_stages) == (stages, 2 * stages - 1)


@pytest.mark.parametrize(
    ("num_layers", "layout", "ipus", "counts"),
    [
        (9, [-1, -1], 2, [4, 5]),  # the surplus goes to the last wildcard
        (12, [-1], 4, [3, 3, 3, 3]),  # a lone wildcard is one for every IPU
        (12, [1, -1, -1, -1], 4, [1, 3, 3, 5]),
        (12, [-1, 4, -1, 4], 4, [2, 4, 2, 4]),
        (4, [2, -1, 2, 0], 4, [2, 0, 2, 0]),
        (12, [0, 4, 4, 4], 1, [12]),  # one IPU: layers_per_ipu is not read
    ],
)
def test_wildcards_share_the_remaining_layers(num_layers: int, layout: List[int], ipus: int, counts: List[int]) -> None:
    assert expand_layers(num_layers, layout, ipus) == counts


def test_the_table_shows_every_stage_idle_ipus_and_the_sums() -> None:
    assert place_by_layers("pretraining", 4, [0, 3, 1, 0], 4).table(replicas=4).splitlines() == [
        "stage  IPU  blocks",
        "    1    0  embeddings",
        "    2    1  encoder layers 0-2",
        "    3    2  encoder layer 3",
        "    4    0  pooler, MLM and NSP heads",
        "    -    3  (idle)",
        "4 IPUs x 4 replicas = 16 IPUs; 4 forward stages, 2x4-1 = 7 in training",
    ]


HID4 = ["hid"] * 4
TF2_PRETRAIN = [["emb"], HID4, HID4, HID4, ["enc_out", "pool", "heads"]]
TF2_SQUAD = [["emb"], HID4, HID4, HID4, ["qa_head"]]


def test_the_tf2_layout_of_pretraining_is_that_of_layers_per_ipu_and_answers_return_to_ipu_0() -> None:
    found = place_by_stages("pretraining", 12, TF2_PRETRAIN, [0, 1, 2, 3, 0])
    assert found == place_by_layers("pretraining", 12, [0, 4, 4, 4], 4)
    found = place_by_stages("question_answering", 12, TF2_SQUAD, [0, 1, 2, 3, 0])
    assert (found.layers, found.pooler, found.heads, found.forward_stages) == (BASE, None, 0, 5)


def test_stages_without_a_block_of_ours_make_no_stage() -> None:
    stages = [["emb", "hid"], ["hid", "enc_out", "pool"], ["qa_head"]]  # the pooler of TF2's QA model is unused
    assert place_by_stages("question_answering", 2, stages, [0, 1, 0]).order == (0, 0, 1, 0)


@pytest.mark.parametrize(
    ("global_batch", "micro_batch", "replicas", "factor", "accumulation"),
    [
        (65536, 32, 4, 1.0, 512),
        (65536, 8, 4, 1.17, 1750),  # 65536 / 1.17 / 32 = 1750.4
        (8192, 2, 4, 2.0, 512),
        (12, 2, 2, 2.0, 2),  # 1.5, the half is rounded up
        (4, 8, 4, 2.0, 1),  # never 0
    ],
)
def test_accumulation_is_derived_from_the_global_batch(
    global_batch: int, micro_batch: int, replicas: int, factor: float, accumulation: int
) -> None:
    assert derive_accumulation(global_batch, micro_batch, replicas, factor) == accumulation


def layers(*counts: int) -> Any:
    return lambda: place_by_layers("pretraining", 12, list(counts), 4)


def stages(*blocks: List[str], head: str = "pretraining") -> Any:
    return lambda: place_by_stages(head, 12, list(blocks), [0, 1, 0])


def count(ipus: int, replicas: int, instances: int) -> Any:
    return lambda: check_ipu_count(ipus, replicas, instances)


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (layers(0, 4, 4, 5), r"places 13 .* has 12.* use \[-1, -1, -1, -1\]"),
        (layers(8, -1, 8, -1), "places 16"),
        (lambda: place_by_stages("pretraining", 12, TF2_PRETRAIN, [0, 1, 2, 3, 3]), "heads on IPU 3, emb on IPU 0"),
        (stages(["emb"], HID4, ["pool", "heads"]), "hid occurs 4 times"),
        (stages(["emb"], HID4 * 3, ["heads"]), "pool must occur once"),
        (stages(["emb"], HID4 * 3, ["pool", "heads", "qa_head"]), "qa_head is not part of"),
        (stages(["pool", "heads"], HID4 * 3, ["emb"]), "order must be emb"),
        (stages(["emb"], HID4 * 3, ["pool", "pool", "qa_head"], head="question_answering"), "pool occurs 2 times"),
        (stages(["emb"], HID4 * 3, ["qa_heads"], head="question_answering"), "qa_heads; valid: emb"),
        (lambda: check_serialization(30522, 5, "projection"), "3 or 6"),
        (lambda: derive_accumulation(16, 8, 4, 1.0), "global_batch_size to 32"),
        (count(4, 6, 2), "replication_factor to 4 or 8$"),
        (count(4, 32, 1), "replication_factor to at most 16, or start 2"),
        (count(128, 1, 1), "start 2 instances under poprun"),
        (count(4, 5, 2), "5 / 2 leaves 1"),
    ],
)
def test_what_cannot_be_placed_is_refused_with_what_can(attempt: Any, said: str) -> None:
    for possible in ((4, 1, 1), (4, 16, 1), (1, 1, 1), (4, 32, 2)):
        check_ipu_count(*possible)
    with pytest.raises(ConfigError, match=said):
        attempt()
