"""Our model next to transformers': same weights, same samples, no dropout, fp32."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "ipu_model"))  # the row and job helpers live there

from tiny_jobs import TINY  # noqa: E402

CONFIG = dataclasses.replace(TINY, hidden_dropout=0.0, attention_dropout=0.0, initializer_range=0.5)
"""Weights of 0.5, so that attention and logits are far from uniform and an error would show."""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
