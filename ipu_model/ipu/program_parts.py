"""What decides a compiled program: the fingerprint of an executable.

PopART finds a program by a hash (PopART 3.4, https://github.com/graphcore/popart, folder willow/src). `Ir::prepareImpl`
(ir.cpp) makes it of

- the forward graph: type, name, attributes, inputs and outputs of every operation (`Ir::append`, opserialiser.cpp);
- what is returned, and how many micro-batches a call runs (`DataFlow::hash`, dataflow.cpp);
- the session options that change a program (`hash<SessionOptions>`, sessionoptions.cpp), patterns and engine options
  (`Session::getEngineCacheHashSeed`, session.cpp);
- the optimizer: kind, types, and those of its values that are constant (`hash<OptimizerValue>`, optimizervalue.cpp);
- of the device the architecture, the tiles and the number of IPUs (`hash<DeviceInfo>`, devicemanager.cpp), and whether
  it is an IPU at all (`isHwCompatible`): IPUs and the offline target count alike;
- the versions of Poplar and PopART.

Neither weights nor the seed are in it (`Session::setRandomSeed` sets that after compiling), nor the file of
`saveInitializersToFile`, nor values that stay variable. The fingerprint holds the same, by what we hand over: one graph
and one set of options for each mode, whatever keys of the ipu_config they were derived from.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Sequence

import torch
from torch import Tensor

from ipu_model.ipu.optimizers import compiled_in
from ipu_model.ipu.options import MK2
from ipu_model.ipu.planning import IpuPlan
from ipu_model.ipu.sdk import sdk_name
from ipu_model.jobs.job import Job
from ipu_model.models.config import ModelConfig

NOT_IN_THE_GRAPH = ("hidden_dropout", "attention_dropout", "initializer_range")
"""Of a ModelConfig: the layout has the dropout of the mode; fresh weights decide no program."""


def host_parts(poptorch: Any, compile_only: bool) -> Dict[str, Any]:
    """What the host decides: versions, and for which IPUs programs are built (2: Mk2 and Bow, 21: C600)."""
    return {
        "poptorch": poptorch.__version__,
        "torch": torch.__version__,
        "poplar_sdk": sdk_name(os.environ),
        "ipu_version": MK2 if compile_only else poptorch.ipuHardwareVersion(),
    }


def executable_parts(
    host: Dict[str, Any], mode: str, job: Job, plan: IpuPlan, model: ModelConfig, inputs: Sequence[Tensor]
) -> Dict[str, Any]:
    """Everything that decides a program of a job, by dotted name.

    Args:
        host: From host_parts.
        mode: training; inference, which returns logits; or evaluation, which returns sums over labels.
        plan: of that mode.
        inputs: Of one call.
    """
    training = mode == "training"
    return {
        "mode": mode,
        "head": job.head,
        **host,
        "micro_batch_size": job.geometry.micro_batch_size,
        "half": plan.half,
        "instances": plan.instances.count,
        "inputs": [[*x.shape, str(x.dtype)] for x in inputs],
        **({} if job.labels is None else {"labels": len(job.labels)}),
        "model": {name: value for name, value in vars(model).items() if name not in NOT_IN_THE_GRAPH},
        "layout": _layout(plan, model, training),
        "config": _options(plan, training),
        "optimizer": compiled_in(job.optimizer, plan.half) if training and job.optimizer is not None else {},
    }


def _layout(plan: IpuPlan, model: ModelConfig, training: bool) -> Dict[str, Any]:
    layout = plan.layout(model, inference=not training)
    placement = {name: value for name, value in vars(layout.placement).items() if name != "head"}
    return {**vars(layout), "placement": {**placement, "layers": list(layout.placement.layers)}}


def _options(plan: IpuPlan, training: bool) -> Dict[str, Any]:
    """Of the options in options.py those that change a program, under the keys of an ipu_config."""
    config = plan.config
    mode = config.training if training else config.inference
    sharded = config.replicated_tensor_sharding and mode.replication_factor > 1
    of_both = {
        "replication_factor": mode.replication_factor,
        "device_iterations": mode.device_iterations,
        "matmul_proportion": mode.matmul_proportion,
        "enable_half_partials": config.enable_half_partials and plan.half,
        "optimizer_state_offchip": config.optimizer_state_offchip,
        "replicated_tensor_sharding": sharded,
    }
    if training:
        of_training = {"output_mode": config.output_mode, "auto_loss_scaling": config.auto_loss_scaling}
        return {**of_both, **of_training, "gradient_accumulation_steps": plan.accumulation}
    return {
        **of_both,
        "pipelined": plan.pipelined_inference,
        "explicit_ir_inference": config.explicit_ir_inference,
    }
