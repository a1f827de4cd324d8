"""PopTorch options of a job, as Optimum Graphcore 0.7.1 sets them for the same ipu_config.json, with the reasons; and
the fingerprint of an executable: everything that decides the compiled program.

Differences from Optimum, and their benefit:

- The seed is always set, 0 included, so that a run can be repeated.
- `saveInitializersToFile` is not used: it keeps the weights out of the graph's protobuf, which is limited to 2 GB, and
  BERT large has 1.3 GB in fp32. Without it, no file is written at every compile. PopART's key (below) has neither the
  name nor the content of that file, so that the cache finds the same program either way.
- Stochastic rounding and fp16 partials are used only in fp16 jobs: an fp32 job stays comparable with one on a CPU.
- Inference can be pipelined: as many IPUs can work at a time as there are stages, instead of one with sharding.

Sources for the meaning of PopART settings: popart/sessionoptions.hpp and PopTorch's user guide.

PopART finds a program by a hash (PopART 3.4, https://github.com/graphcore/popart, folder willow/src). `Ir::prepareImpl`
(ir.cpp) computes it from

- the forward graph: type, name, attributes, inputs and outputs of every operation (`Ir::append`, opserialiser.cpp);
- the returned tensors, and the micro-batches of a call (`DataFlow::hash`, dataflow.cpp);
- the session options that change a program (`hash<SessionOptions>`, sessionoptions.cpp), patterns and engine options
  (`Session::getEngineCacheHashSeed`, session.cpp);
- the optimizer: kind, types, and its constant values (`hash<OptimizerValue>`, optimizervalue.cpp);
- the device: architecture, tiles, number of IPUs (`hash<DeviceInfo>`, devicemanager.cpp), and whether it is an IPU
  (`isHwCompatible`): IPUs and the offline target are equal, although a program can depend on the gateway mode, which
  the key lacks (runtimes/ipu.py compiles again what does not load);
- the versions of Poplar and PopART.

The hash does not include weights, the seed (`Session::setRandomSeed` sets it after compiling), the file of
`saveInitializersToFile`, or variable values. The fingerprint covers the same, in terms of our inputs: one graph and one
set of options for each mode, regardless of the ipu_config keys that they were derived from.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Optional, Sequence

import torch
from torch import Tensor

from ipu_model.ipu.optimizers import compiled_values
from ipu_model.ipu.planning import IpuPlan
from ipu_model.ipu.sdk import sdk_name
from ipu_model.jobs.job import Job
from ipu_model.models.config import HEAD_DROPOUTS, ModelConfig

NOT_IN_THE_GRAPH = ("hidden_dropout", "attention_dropout", "initializer_range", *HEAD_DROPOUTS)
"""Fields of ModelConfig that are not in every graph: the layout has the dropout of the mode, only training has that of
a head, and initial weights do not change a program."""
OVERLAP_MEMORY_OPTIMIZED = 3
"""popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized."""
JUST_IN_TIME = 1
"""popart.SubgraphCopyingStrategy.JustInTime."""
MK2 = 2
"""IPU version of GC200 and Bow, the target of a compile without IPUs."""
PATTERNS = {
    # Memory: one copy, and one accumulated gradient, of the word table that look-up and decoder share.
    "TiedGather": True,
    "TiedGatherAccumulate": True,
    # Memory and speed: operations that save most on an IPU are the first to write in place.
    "UpdateInplacePrioritiesForIpu": True,
}
ENGINE_OPTIONS = {
    # Speed: a program is loaded onto the IPUs faster.
    "opt.useAutoloader": "true",
    # Speed: a replica waits only for the host, not also for the other replicas.
    "target.syncReplicasIndependently": "true",
}


def fill_options(
    poptorch: Any,
    options: Any,
    plan: IpuPlan,
    training: bool,
    *,
    set_replication: bool,
    seed: int,
    cache_folder: Optional[str],
    compile_only: bool,
) -> None:
    """Fill `options` for the program that trains, or for one that infers.

    Args:
        options: poptorch.Options(), or popdist's; changed in place. Seeding also seeds torch's generator on the host.
        set_replication: False under PopDist, whose options set the number of replicas and reject changes to it.
        seed: seed of the device's random numbers, where the config has none.
        compile_only: build for an IPU that is not attached.
    """
    config = plan.config
    mode = config.training if training else config.inference
    replicas = plan.local_replicas if training else mode.replication_factor
    options.autoRoundNumIPUs(True)  # a pipeline of 3 IPUs occupies 4, the next power of two, instead of failing
    options.deviceIterations(mode.device_iterations)
    options.randomSeed(seed if config.seed is None else config.seed)
    options.setAvailableMemoryProportion({f"IPU{ipu}": share for ipu, share in enumerate(mode.matmul_proportion)})
    if compile_only:
        options.useOfflineIpuTarget(MK2)
    if cache_folder is not None:
        options.enableExecutableCaching(cache_folder)
    if config.enable_half_partials and plan.half:
        options.Precision.setPartialsType(torch.float16)  # half the memory of partial sums, less precision
    _popart_switches(options)
    if set_replication:
        options.replicationFactor(replicas)
    sharded = config.replicated_tensor_sharding and replicas > 1
    location = poptorch.TensorLocationSettings()
    location.useOnChipStorage(not config.optimizer_state_offchip).useReplicatedTensorSharding(sharded)
    options.TensorLocations.setOptimizerLocation(location)
    if training:
        _training_options(poptorch, options, plan)
    else:
        _inference_options(poptorch, options, plan)


def _training_options(poptorch: Any, options: Any, plan: IpuPlan) -> None:
    modes = poptorch.OutputMode
    by_name = {"all": modes.All, "sum": modes.Sum, "final": modes.Final, "default": modes.Default}
    options.outputMode(by_name[plan.config.output_mode])
    options.Training.gradientAccumulation(plan.accumulation)
    # The loss of an update is a mean over its micro-batches and replicas; see host_calls.py.
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    if plan.config.auto_loss_scaling:
        options.Training.setAutomaticLossScaling(True)
    # Every stage works on another micro-batch. AutoIncrement: the tied decoder comes back to IPU 0 as a new stage.
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    # fp16 weights have no fp32 copy: updates below half a step would round away without it.
    options.Precision.enableStochasticRounding(plan.half)


def _inference_options(poptorch: Any, options: Any, plan: IpuPlan) -> None:
    options.outputMode(poptorch.OutputMode.All)
    strategy = poptorch.PipelinedExecution if plan.pipelined_inference else poptorch.ShardedExecution
    options.setExecutionStrategy(strategy(poptorch.AutoStage.AutoIncrement))
    # The same input gives the same output every time.
    options.Precision.enableStochasticRounding(False)
    if plan.config.explicit_ir_inference:
        options._Popart.set("enableExplicitIR", True)  # memory: a schedule with shorter lifetimes of tensors


def _popart_switches(options: Any) -> None:
    switch = options._Popart.set
    # Memory and host traffic: the host never reads accumulated gradients, so they get no stream.
    switch("disableGradAccumulationTensorStreams", True)
    # Speed: the IPUs of a pipeline update their weights at the same time, in an order that spares memory.
    switch("accumulateOuterFragmentSettings.schedule", OVERLAP_MEMORY_OPTIMIZED)
    # Memory: IPU 0 holds the word table, the largest gradient, so its update is not overlapped with others.
    switch("accumulateOuterFragmentSettings.excludedVirtualGraphs", ["0"])
    # Speed: share code only where that saves more than copying its inputs and outputs costs (default 1.0).
    switch("outlineThreshold", 10.0)
    # Memory: copy inputs of shared code when they are used, so that fewer copies exist at a time.
    switch("subgraphCopyingStrategy", JUST_IN_TIME)
    # Memory: consume a gradient as soon as it exists instead of at the weight update.
    switch("scheduleNonWeightUpdateGradientConsumersEarly", True)
    options._Popart.setPatterns(dict(PATTERNS))
    switch("engineOptions", dict(ENGINE_OPTIONS))


def describe_host(poptorch: Any, compile_only: bool) -> Dict[str, Any]:
    """Return the parts that depend on the host: versions, and the IPUs of the target (2: Mk2 and Bow, 21: C600)."""
    return {
        "poptorch": poptorch.__version__,
        "torch": torch.__version__,
        "poplar_sdk": sdk_name(os.environ),
        "ipu_version": MK2 if compile_only else poptorch.ipuHardwareVersion(),
    }


def executable_parts(
    host: Dict[str, Any], mode: str, job: Job, plan: IpuPlan, model: ModelConfig, inputs: Sequence[Tensor]
) -> Dict[str, Any]:
    """Return everything that decides a program of a job, by name.

    `mode` is training; inference, which returns logits; or evaluation, which returns sums over labels. `inputs` are
    those of one call, `host` is from describe_host.
    """
    training = mode == "training"
    dropouts = [name for name in HEAD_DROPOUTS if training and getattr(model, name) != getattr(ModelConfig, name)]
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
        **{name: getattr(model, name) for name in dropouts},
        "layout": _program_layout(plan, model, training),
        "config": _program_options(plan, training),
        "optimizer": compiled_values(job.optimizer, plan.half) if training and job.optimizer is not None else {},
        **({"distillation": vars(job.distillation)} if training and job.distillation is not None else {}),
    }


def _program_layout(plan: IpuPlan, model: ModelConfig, training: bool) -> Dict[str, Any]:
    layout = plan.layout(model, inference=not training)
    placement = {name: value for name, value in vars(layout.placement).items() if name != "head"}
    return {**vars(layout), "placement": {**placement, "layers": list(layout.placement.layers)}}


def _program_options(plan: IpuPlan, training: bool) -> Dict[str, Any]:
    """Return the options that change a program, under the keys of an ipu_config."""
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
