"""The options of a job as PopTorch hands them to its compiler, against values written by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Dict, Iterator

import poptorch
import pytest
import torch
from expected_options import (
    ALL,
    BERT_SWITCHES,
    FINAL,
    FRONT_END,
    GENERAL,
    NEVER,
    PIPELINED,
    SUM,
)

from ipu_model.ipu.config import IpuConfig
from ipu_model.ipu.options import fill_options


class TwoStages(torch.nn.Module):
    """Two lines on two IPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("first", ipu_id=0):
            y = self.inner(x)
        with poptorch.Block("second", ipu_id=1):
            return poptorch.identity_loss((y * y).sum(), reduction="none") if self.training else y.sum(-1)


@pytest.fixture(autouse=True)
def _host_random_numbers_are_not_touched() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield


def recorded(executor: Any, options: Any) -> Dict[str, Any]:
    """What PopTorch recorded of compiling the two lines with `options`: one row per micro-batch."""
    rows = options.device_iterations * options.replication_factor * options.Training.gradient_accumulation
    executor.compile(torch.ones(rows, 3))
    executable = poptorch.poptorch_core.getRecord()["executables"][-1]
    calls = {call[1]: call[2] for call in executable["option_calls"] if call[1] in GENERAL}
    memory = {call[1]: call[2] for call in executable["option_calls"] if call[0] == "setMemoryProportion"}
    popart = {key: value for key, value in executable["popart_session_options"].items() if key not in FRONT_END}
    executor.destroy()
    return {"general": calls, "memory": memory, "popart": popart, "locations": executable["tensor_locations"]}


def filled(config: IpuConfig, training: bool, changes: Dict[str, Any]) -> Any:
    """Options for a plan of this config; `changes` of the plan, and of what the host and the job say."""
    plan: Any = SimpleNamespace(
        config=config,
        half=changes.get("half", True),
        local_replicas=changes.get("replicas", config.training.replication_factor),
        accumulation=changes.get("accumulation", config.gradient_accumulation_steps or 3),
        pipelined_inference=changes.get("pipelined", False),
    )
    of_job = {"set_replication": True, "seed": 11, "cache_folder": None, "compile_only": False}
    options = poptorch.Options()
    fill_options(poptorch, options, plan, training, **{name: changes.get(name, x) for name, x in of_job.items()})
    return options


def trained(config: IpuConfig, **changes: Any) -> Dict[str, Any]:
    options = filled(config, True, changes)
    model = TwoStages().train()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-3, accum_type=torch.float16)
    return recorded(poptorch.trainingModel(model, options, optimizer), options)


def inferred(config: IpuConfig, **changes: Any) -> Dict[str, Any]:
    options = filled(config, False, changes)
    return recorded(poptorch.inferenceModel(TwoStages().eval(), options), options)


def test_the_seed_of_the_config_wins_zero_included_and_the_seed_of_the_job_stands_in() -> None:
    assert trained(IpuConfig(seed=0), seed=5)["general"]["random_seed"] == 0
    assert trained(IpuConfig(), seed=0)["general"]["random_seed"] == 0
    assert inferred(IpuConfig(seed=3), seed=5)["general"]["random_seed"] == 3


def test_an_fp32_job_has_neither_stochastic_rounding_nor_fp16_partials() -> None:
    assert trained(IpuConfig(), half=False)["popart"] == {**BERT_SWITCHES, "enableStochasticRounding": False}
    assert inferred(IpuConfig(), half=False)["popart"] == {**BERT_SWITCHES, "enableStochasticRounding": False}


def test_fp16_partials_can_be_switched_off() -> None:
    off = trained(IpuConfig(enable_half_partials=False))["popart"]
    assert off == {**BERT_SWITCHES, "enableStochasticRounding": True}


@pytest.mark.parametrize(("name", "mode"), [("all", ALL), ("sum", SUM), ("final", FINAL), ("default", FINAL)])
def test_output_mode_is_that_of_the_config_in_training_and_all_in_inference(name: str, mode: int) -> None:
    assert trained(IpuConfig(output_mode=name))["general"]["output_mode"] == mode
    assert inferred(IpuConfig(output_mode=name))["general"]["output_mode"] == ALL


def test_optimizer_state_is_sharded_only_between_several_replicas_and_off_chip_when_asked() -> None:
    config = IpuConfig(replicated_tensor_sharding=True, optimizer_state_offchip=True)
    assert trained(config, replicas=1)["locations"]["location_optimizer"]["useReplicatedTensorSharding"] == 0
    assert trained(config, replicas=2)["locations"]["location_optimizer"] == {
        "onChip": 0,
        "useReplicatedTensorSharding": 1,
    }
    unsharded = trained(IpuConfig(), replicas=2)["locations"]["location_optimizer"]
    assert unsharded == {"onChip": 1, "useReplicatedTensorSharding": 0}


def test_popdist_options_are_not_told_the_number_of_replicas() -> None:
    config = IpuConfig(replication_factor=4, inference_replication_factor=4)
    assert trained(config, set_replication=False)["general"]["replication_factor"] == 1
    assert inferred(config, set_replication=False)["general"]["replication_factor"] == 1


def test_pipelined_inference_runs_all_stages_at_a_time() -> None:
    found = inferred(IpuConfig(inference_device_iterations=2), pipelined=True)
    assert (found["general"]["execution_mode"], found["general"]["gradient_accumulation"]) == (PIPELINED, 1)


def test_compile_only_builds_for_an_mk2_that_is_not_there() -> None:
    for found in (trained(IpuConfig(), compile_only=True), inferred(IpuConfig(), compile_only=True)):
        assert (found["general"]["connection_type"], found["general"]["ipu_version"]) == (NEVER, 2)


def test_explicit_ir_is_for_inference_only() -> None:
    config = IpuConfig(explicit_ir_inference=True)
    assert inferred(config)["popart"]["enableExplicitIR"] is True
    assert "enableExplicitIR" not in trained(config)["popart"]


def test_training_and_inference_have_their_own_iterations_and_memory_proportions() -> None:
    config = IpuConfig(
        layers_per_ipu=[1, 1],
        device_iterations=2,
        inference_device_iterations=3,
        matmul_proportion=[0.1, 0.2],
        inference_matmul_proportion=[0.3, 0.4],
    )
    training, inference = trained(config), inferred(config)
    assert (training["general"]["device_iterations"], training["memory"]) == (2, {0: 0.1, 1: 0.2})
    assert (inference["general"]["device_iterations"], inference["memory"]) == (3, {0: 0.3, 1: 0.4})


def test_automatic_loss_scaling_is_for_training_only() -> None:
    config = IpuConfig(auto_loss_scaling=True)
    assert trained(config)["popart"]["automaticLossScalingSettings.enabled"] is True
    assert "automaticLossScalingSettings.enabled" not in inferred(config)["popart"]
    assert "automaticLossScalingSettings.enabled" not in trained(IpuConfig())["popart"]
