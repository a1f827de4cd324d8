"""Our model next to transformers': same weights, same samples, no dropout, fp32."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "ipu_model"))  # the row and job helpers live there


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
