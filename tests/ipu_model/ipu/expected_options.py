"""Options that every IPU job has, written by hand."""

from __future__ import annotations

FRONT_END = {
    "instrumentWithHardwareCycleCounter",
    "rearrangeAnchorsOnHost",
    "ipuof_configs",
    "meanAccumulationAndReplicationReductionStrategy",
}
"""PopART options that PopTorch sets by itself."""
BERT_SWITCHES = {
    "disableGradAccumulationTensorStreams": True,
    "accumulateOuterFragmentSettings.schedule": 3,  # OverlapMemoryOptimized
    "accumulateOuterFragmentSettings.excludedVirtualGraphs": ["0"],
    "outlineThreshold": 10.0,
    "subgraphCopyingStrategy": 1,  # JustInTime
    "scheduleNonWeightUpdateGradientConsumersEarly": True,
    "patterns": {"TiedGather": True, "TiedGatherAccumulate": True, "UpdateInplacePrioritiesForIpu": True},
    "patterns_level": 2,
    "engineOptions": {"opt.useAutoloader": "true", "target.syncReplicasIndependently": "true"},
}
HALF_PARTIALS = {"partialsTypeMatMuls": "half", "convolutionOptions": {"partialsType": "half"}}
GENERAL = (
    "accumulation_and_replication_reduction_type",
    "auto_round_num_ipus",
    "connection_type",
    "device_iterations",
    "execution_mode",
    "gradient_accumulation",
    "ipu_id",
    "ipu_version",
    "output_mode",
    "random_seed",
    "replication_factor",
    "sync_pattern",
)
PIPELINED, SHARDED = 0, 1
FINAL, ALL, SUM = 0, 2, 3
NEVER = 2
MEAN = 1
