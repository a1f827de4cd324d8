"""Placement by hand: which block is on which IPU, how many stages that makes, and the explicit TF2 layout."""

import pytest

from ipu_model.core.errors import ConfigError
from ipu_model.ipu.placement import expand_layers, place_by_layers, place_by_stages
from ipu_model.ipu.planning import check_ipu_count, derive_accumulation

BASE = (1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3)
EIGHT = (0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6, 7, 7, 7, 7)


@pytest.mark.parametrize(
    ("head", "layout", "layers", "pooler", "heads", "stages"),
    [
        ("pretraining", [0, 4, 4, 4], BASE, 0, 0, 5),
        ("pretraining", [2, 3, 3, 3, 3, 3, 3, 4], EIGHT, 0, 0, 9),
        ("question_answering", [0, 4, 4, 4], BASE, None, 3, 4),
        ("sequence_classification", [0, 4, 4, 4], BASE, 3, 3, 4),
        ("pretraining", [2], (0, 0), 0, 0, 1),
        ("pretraining", [1, 1], (0, 1), 0, 0, 3),
    ],
)
def test_the_blocks_of_a_layout_are_where_the_hand_worked_table_says(head, layout, layers, pooler, heads, stages):
    placement = place_by_layers(head, len(layers), layout, len(layout))
    assert (placement.embeddings, placement.layers, placement.pooler, placement.heads) == (0, layers, pooler, heads)
    assert placement.order == (0, *layers, *([] if pooler is None else [pooler]), heads)
    assert (placement.forward_stages, placement.training_stages) == (stages, 2 * stages - 1)


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
def test_wildcards_share_the_remaining_layers(num_layers, layout, ipus, counts):
    assert expand_layers(num_layers, layout, ipus) == counts


def test_the_table_shows_every_stage_idle_ipus_and_the_sums():
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


def test_the_tf2_layout_of_pretraining_is_that_of_layers_per_ipu_and_answers_return_to_ipu_0():
    """Stages without a block of ours make no stage: the pooler of TF2's QA model is unused."""
    tied = place_by_stages("pretraining", 12, TF2_PRETRAIN, [0, 1, 2, 3, 0])
    assert tied == place_by_layers("pretraining", 12, [0, 4, 4, 4], 4)
    answers = place_by_stages("question_answering", 12, TF2_SQUAD, [0, 1, 2, 3, 0])
    assert (answers.layers, answers.pooler, answers.heads, answers.forward_stages) == (BASE, None, 0, 5)
    unused = [["emb", "hid"], ["hid", "enc_out", "pool"], ["qa_head"]]
    assert place_by_stages("question_answering", 2, unused, [0, 1, 0]).order == (0, 0, 1, 0)


@pytest.mark.parametrize(
    ("global_batch", "micro_batch", "replicas", "factor", "accumulation"),
    [
        (65536, 8, 4, 1.17, 1750),  # 65536 / 1.17 / 32 = 1750.4
        (12, 2, 2, 2.0, 2),  # 1.5, the half is rounded up
        (4, 8, 4, 2.0, 1),  # never 0
    ],
)
def test_accumulation_is_derived_from_the_global_batch(global_batch, micro_batch, replicas, factor, accumulation):
    assert derive_accumulation(global_batch, micro_batch, replicas, factor) == accumulation


def stages(*blocks, head="pretraining", mapping=(0, 1, 0)):
    return lambda: place_by_stages(head, 12, list(blocks), list(mapping))


def count(ipus, replicas, instances):
    return lambda: check_ipu_count(ipus, replicas, instances)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: place_by_layers("pretraining", 12, [8, -1, 8, -1], 4), "places 16"),
        (stages(*TF2_PRETRAIN, mapping=(0, 1, 2, 3, 3)), "heads on IPU 3, emb on IPU 0"),
        (stages(["emb"], HID4, ["pool", "heads"]), "hid occurs 4 times"),
        (stages(["emb"], HID4 * 3, ["heads"]), "pool must occur once"),
        (stages(["emb"], HID4 * 3, ["pool", "heads", "qa_head"]), "qa_head is not part of"),
        (stages(["pool", "heads"], HID4 * 3, ["emb"]), "order must be emb"),
        (stages(["emb"], HID4 * 3, ["pool", "pool", "qa_head"], head="question_answering"), "pool occurs 2 times"),
        (stages(["emb"], HID4 * 3, ["qa_heads"], head="question_answering"), "qa_heads; valid: emb"),
        (count(4, 6, 2), "replication_factor to 4 or 8$"),
        (count(4, 32, 1), "replication_factor to at most 16, or start 2"),
        (count(128, 1, 1), "start 2 instances under poprun"),
        (count(4, 5, 2), "5 / 2 leaves 1"),
    ],
)
def test_what_cannot_be_placed_is_refused_with_what_can(attempt, words):
    with pytest.raises(ConfigError, match=words):
        attempt()


@pytest.mark.parametrize("possible", [(4, 1, 1), (4, 16, 1), (1, 1, 1), (4, 32, 2)])
def test_groups_of_ipus_that_can_be_attached_are_taken(possible):
    check_ipu_count(*possible)
