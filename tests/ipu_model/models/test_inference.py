"""Prediction cut into passes against whole batches, and its attention against the plain one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_jobs import TINY, make_columns, write_rows

from ipu_model.models.flat import FlatBatch, flatten
from ipu_model.models.modeling import build_model, initialise
from ipu_model.rows.row_folder import RowFolder
from ipu_model.runtimes import torch_device
from ipu_model.runtimes.torch_device import Device


def read(folder: Path, rows: int) -> FlatBatch:
    write_rows(folder, "question_answering", make_columns("question_answering", rows))
    return flatten(RowFolder(folder, "question_answering", TINY).take(np.arange(rows)))


def test_passes_hold_all_tokens_in_order_and_few_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_device, "TOKENS_PER_PASS", 40)
    monkeypatch.setattr(torch_device, "ROUND_TO", 8)
    flat = read(tmp_path / "rows", 30)
    made = list(Device().split_passes(flat))
    assert len(made) > 5
    assert all(count <= 40 and len(tokens.input_ids) == -(-count // 8) * 8 for count, tokens, _ in made)
    for name in ("input_ids", "token_type_ids", "position_ids"):
        parts = [getattr(tokens, name)[:count] for count, tokens, _ in made]
        assert torch.equal(torch.cat(parts), getattr(flat.tokens, name)[: flat.real_tokens])
        assert all(not getattr(tokens, name)[count:].any() for count, tokens, _ in made)
    assert all((tokens.position_ids[starts] == 0).all() for _, tokens, starts in made)
    assert sum(len(starts) for _, _, starts in made) == len(flat.lengths)


def test_a_sequence_longer_than_a_pass_has_one_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_device, "TOKENS_PER_PASS", 1)
    flat = read(tmp_path / "rows", 4)
    assert [count for count, _, _ in Device().split_passes(flat)] == flat.lengths.tolist()


def test_logits_do_not_depend_on_how_a_batch_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flat = read(tmp_path / "rows", 30)
    model = build_model("question_answering", TINY).eval()
    initialise(model, TINY, 3)
    with torch.no_grad():
        whole = model(flat.tokens)[: flat.real_tokens]
        for tokens_per_pass in (30, 200, 4096):
            monkeypatch.setattr(torch_device, "TOKENS_PER_PASS", tokens_per_pass)
            cut = torch.cat([model(tokens)[:count] for count, tokens, _ in Device().split_passes(flat)])
            torch.testing.assert_close(cut, whole, rtol=1e-5, atol=1e-6)
