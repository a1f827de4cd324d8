"""The precision of a finished model: that of the scores which its release or its run states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.downstream.inference.job import choose_place
from tasks.params.sections import RuntimeSpec

BF16, FP32 = {"runtime": "cpu", "precision": "bf16"}, {"runtime": "cpu", "precision": "fp32"}


@pytest.mark.parametrize(
    ("stated", "precision"),
    [
        ({"prediction": BF16, "training": {"squad-finetune": FP32}}, "bf16"),
        ({"prediction": {"dev_matched": BF16, "dev_mismatched": BF16}, "training": {}}, "bf16"),
        ({"training": {"squad-finetune": BF16}}, "fp32"),
        ({"prediction": None, "training": {}}, "fp32"),
        ({"prediction": {"precision": "fp4"}, "training": []}, "fp32"),
        ([], "fp32"),
    ],
)
def test_the_provenance_of_a_release_decides(tmp_path: Path, stated: Any, precision: str) -> None:
    (tmp_path / "provenance.json").write_text(json.dumps(stated))
    assert choose_place(tmp_path, "auto", None) == RuntimeSpec("auto", precision)
    assert choose_place(tmp_path, "cpu", "auto") == RuntimeSpec("cpu", "auto")
    assert choose_place(tmp_path, "ipu", None) == RuntimeSpec("ipu", "auto")


def test_what_only_ipus_have_is_computed_in_fp32_elsewhere_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "provenance.json").write_text(json.dumps({"prediction": {"runtime": "ipu", "precision": "fp16"}}))
    assert choose_place(tmp_path, "cpu", None) == RuntimeSpec("cpu", "fp32")
    assert "computed in fp16, which only IPUs support; using fp32" in capsys.readouterr().err
