"""Under PopRun: who this process is, its share of the rows, whose options, and what is averaged."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
import torch

from ipu_model.__main__ import detect_instances
from ipu_model.core.errors import ConfigError
from ipu_model.distributed.instances import Instances
from ipu_model.distributed.process import StopRequest


def test_a_process_of_poprun_without_its_packages_does_not_train_alone() -> None:
    def importer(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    with pytest.raises(ConfigError, match="popdist cannot be imported.*would train alone"):
        detect_instances({"POPDIST_NUM_TOTAL_REPLICAS": "4"}, importer)


def test_a_process_without_poprun_initialises_nothing_and_one_instance_needs_no_horovod(
    monkeypatch: pytest.MonkeyPatch, poprun: Any
) -> None:
    monkeypatch.delenv("POPDIST_NUM_TOTAL_REPLICAS", raising=False)
    assert detect_instances({}) == Instances()
    assert importlib.import_module("popdist").CALLS == []
    instance = poprun(0, 1)
    assert (instance.count, instance.total_replicas, instance.collectives) == (1, 2, None)
    assert "horovod.torch" not in sys.modules
    assert instance.mean({"loss": 2.0}) == {"loss": 2.0}


def test_replicas_are_those_of_all_instances_together(poprun: Any) -> None:
    instance = poprun(1, 2)
    assert instance.replicas(4) == 2
    with pytest.raises(ConfigError, match="--num-replicas 4 .*replication_factor 2"):
        instance.replicas(2)
    with pytest.raises(ConfigError, match="10 rows of an update .*4 instances"):
        Instances(index=0, count=4).share(10)


def test_popdist_makes_the_options_and_owns_their_replication(poprun: Any) -> None:
    poptorch = importlib.import_module("poptorch")
    instance = poprun(1, 2)
    options, owns_replication = instance.make_options(poptorch, 4)
    assert owns_replication
    assert options.replication_factor == 2
    for refused in (lambda: options.replicationFactor(2), lambda: options.Distributed.configureProcessId(0, 2)):
        with pytest.raises(RuntimeError):
            refused()
    with pytest.raises(ConfigError, match=r"--ipus-per-replica 4 does not agree.* uses 8 IPUs"):
        instance.make_options(poptorch, 8)


def test_all_instances_stop_or_save_when_one_was_told_to(poprun: Any) -> None:
    """Otherwise the one that continues waits in the next reduction for ever. One reduction tells both."""
    instance = poprun(0, 2)
    hvd = importlib.import_module("horovod.torch")
    stop = StopRequest()
    stop.agree = instance.any_instance
    others = {(0.0, 0.0): (False, False), (1.0, 0.0): (True, False), (0.0, 1.0): (False, True)}
    for said, agreed in others.items():
        hvd.OTHERS["podium.any"] = [torch.tensor(said, dtype=torch.float64)]
        assert stop.decide() == agreed
    assert not stop.requested
