"""What is refused before compile: the arithmetic in the message, and a setting that works and then does."""

from __future__ import annotations

from typing import Optional

import pytest

from ipu_model.core.errors import ConfigError
from ipu_model.ipu.placement import place_by_layers
from ipu_model.ipu.planning import check_accumulation, check_ipu_count, check_serialization, derive_accumulation
from ipu_model.jobs.job import BatchGeometry

PRETRAINING = place_by_layers("pretraining", 12, [0, 4, 4, 4], 4)
GEOMETRY = BatchGeometry(64, micro_batch_size=2)
ANSWERS = place_by_layers("question_answering", 12, [0, 4, 4, 4], 4)


@pytest.mark.parametrize(
    ("global_batch", "micro_batch", "replicas", "factor", "accumulation"),
    [
        (65536, 32, 4, 1.0, 512),
        (256, 1, 4, 1.0, 64),
        (16384, 2, 16, 1.0, 512),
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


def test_accumulation_below_2f_minus_1_is_refused_and_2f_minus_1_is_not() -> None:
    with pytest.raises(ConfigError, match=r"IPUs 0-1-2-3, 4 forward stages, 2x4-1 = 7 .* Use at least 7: "):
        check_accumulation(6, ANSWERS, GEOMETRY, 4, 1.0)
    check_accumulation(7, ANSWERS, GEOMETRY, 4, 1.0)
    check_accumulation(1, place_by_layers("pretraining", 2, [2], 1), GEOMETRY, 4, 1.0)
    with pytest.raises(ConfigError, match=r"global_batch_size 108 \(9 x .* x 1\.50 sequences in a row\)"):
        check_accumulation(8, PRETRAINING, GEOMETRY, 4, 1.5)
    check_accumulation(derive_accumulation(108, 2, 4, 1.5), PRETRAINING, GEOMETRY, 4, 1.5)


@pytest.mark.parametrize(("vocab_size", "factor", "said"), [(30522, 5, "3 or 6"), (30522, 40000, "Use 30522$")])
def test_a_factor_that_does_not_divide_the_vocabulary_is_refused(vocab_size: int, factor: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_serialization(vocab_size, factor, "projection")
    with pytest.raises(ConfigError, match="global_batch_size to 32"):
        derive_accumulation(16, 8, 4, 1.0)


@pytest.mark.parametrize(
    ("ipus", "replicas", "instances", "said"),
    [
        (4, 1, 1, None),
        (4, 16, 1, None),
        (1, 1, 1, None),
        (4, 32, 2, None),
        (4, 6, 2, "replication_factor to 4 or 8$"),
        (4, 32, 1, "replication_factor to at most 16, or start 2"),
        (128, 1, 1, "start 2 instances under poprun"),
        (4, 5, 2, "5 / 2 leaves 1"),
    ],
)
def test_powers_of_two_up_to_64_per_process_can_be_attached(
    ipus: int, replicas: int, instances: int, said: Optional[str]
) -> None:
    if said is None:
        check_ipu_count(ipus, replicas, instances)
        return
    with pytest.raises(ConfigError, match=said):
        check_ipu_count(ipus, replicas, instances)
