"""Names and types of session options: what reaches the compiler, or is refused by it."""

from __future__ import annotations

from typing import Any, Dict, List

from poptorch.errors import refusal
from poptorch.words import words

_KNOWN = {
    bool: """
        auto_round_num_ipus broadcast_buffers use_model enableStochasticRounding enableFloatingPointChecks
        enableExplicitIR enableEngineCaching enableOutlining enableStableNorm enablePipelining explicitRecomputation
        instrumentWithHardwareCycleCounter rearrangeAnchorsOnHost rearrangeStreamsOnHost useHostCopyOps
        disableGradAccumulationTensorStreams disableOptimizerStateTensorStreams constantWeights decomposeGradSum
        scheduleNonWeightUpdateGradientConsumersEarly automaticLossScalingSettings.enabled
        enableGradientAccumulation enableReplicatedGraphs enablePrefetchDatastreams enableMergeExchange
        enableLoadAndOffloadRNGState enableSerializedMatmuls ensureFp32LossScaleTensor delayVarUpdates
        """,
    int: """
        execution_mode replication_factor input_group_size input_cgt device_iterations max_repeat_logs output_mode
        output_return_period connection_type sync_pattern random_seed gradient_accumulation ipu_version ipu_id
        accumulation_and_replication_reduction_type meanAccumulationAndReplicationReductionStrategy
        num_distributed_processes distributed_process_id accumulateOuterFragmentSettings.schedule
        subgraphCopyingStrategy autoRecomputation virtualGraphMode syntheticDataMode numIOTiles mergeVarUpdate
        batchSerializationSettings.factor executionPhaseSettings.phases swapLimitScheduler
        """,
    float: "outlineThreshold outlineSequenceBreakCost timeLimitScheduler",
    str: "log_dir model_name cachePath partialsTypeMatMuls saveInitializersToFile kahnTieBreaker",
    list: """
        accumulateOuterFragmentSettings.excludedVirtualGraphs engineOptions reportOptions convolutionOptions
        matmulOptions gclOptions updatableNamedBuffers dotChecks
        """,
}
"""Type -> names. The type of the Python value decides where a name is looked up, so 10 is not an outlineThreshold."""
KNOWN = {kind: words(names) for kind, names in _KNOWN.items()}
LIMITS = {"accumulateOuterFragmentSettings.schedule": 3}
LOCATIONS = frozenset(f"location_{kind}" for kind in ("activation", "weight", "optimizer", "accumulator"))
LOCATION_KEYS = words(
    """onChip useReplicatedTensorSharding useIOTilesToLoad useIOTilesToStore minElementsForOffChip
    minElementsForReplicatedTensorSharding"""
)
SEPARATE = ("patterns_level", "anchored_tensors", "compilation_progress_bar_fn")
OURS = words(
    """auto_round_num_ipus broadcast_buffers use_model execution_mode replication_factor input_group_size input_cgt
    device_iterations max_repeat_logs output_mode output_return_period connection_type sync_pattern random_seed
    gradient_accumulation ipu_version ipu_id accumulation_and_replication_reduction_type num_distributed_processes
    distributed_process_id log_dir model_name available_memory_proportion compilation_progress_bar_fn
    anchored_tensors"""
)
"""PopTorch's own; the others are PopART's."""


def option_calls(options: Dict[str, Any]) -> List[List[Any]]:
    """The calls that hand the options to the compiler, in order.

    Raises:
        Error: a name that the type of its value does not have, or a value out of range.
    """
    calls: List[List[Any]] = []
    for name, value in options.items():
        if name not in SEPARATE:
            calls += _calls(name, value, options)
    return calls


def _calls(name: str, value: Any, options: Dict[str, Any]) -> List[List[Any]]:
    if isinstance(value, dict):
        return _mapping_calls(name, value, options)
    if isinstance(value, (list, tuple, set)):
        return [["insertStringOption", name, _text(name, _known(list, name, x))] for x in value]
    if isinstance(value, bool):
        return [["addBoolOption", name, _known(bool, name, value)]]
    if isinstance(value, int):
        if not 0 <= value <= LIMITS.get(name, 2**64 - 1):
            raise refusal(f"option {name}: {value} is out of range")
        return [["addUint64Option", name, int(_known(int, name, value))]]
    if isinstance(value, float):
        return [["addDoubleOption", name, _known(float, name, value)]]
    if isinstance(value, str):
        return [["addStringOption", name, _known(str, name, value)]]
    raise refusal(f"option {name}: no option takes a {type(value).__name__}")


def _mapping_calls(name: str, value: Dict[Any, Any], options: Dict[str, Any]) -> List[List[Any]]:
    if name == "available_memory_proportion":
        return [["setMemoryProportion", int(ipu), float(share)] for ipu, share in value.items()]
    if name == "patterns":
        if not all(isinstance(enabled, bool) for enabled in value.values()):
            raise refusal(f"patterns are on or off: {value}")
        patterns: List[List[Any]] = [["addPattern", key, enabled] for key, enabled in value.items()]
        return [["setPatternsLevel", options["patterns_level"]], *patterns]
    if name in LOCATIONS:
        unknown = sorted(set(value) - LOCATION_KEYS)
        if unknown:
            raise refusal(f"{name} has no {unknown}")
        return [["setTensorLocation", name, key, int(x)] for key, x in value.items()]
    pairs = [[_text(name, key), _text(name, _known(list, name, x))] for key, x in value.items()]
    return [["insertStringPairOption", name, *pair] for pair in pairs]


def _known(kind: type, name: str, value: Any) -> Any:
    if name not in KNOWN[kind]:
        raise refusal(f"there is no {kind.__name__} option {name} (value {value!r})")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, (str, int)):
        raise refusal(f"option {name}: {value!r} is not a text")
    return value if isinstance(value, str) else str(int(value))


def popart_options(options: Dict[str, Any]) -> Dict[str, Any]:
    """The part of the options that is PopART's."""
    return {k: v for k, v in options.items() if k not in OURS and not k.startswith("location_")}


def tensor_locations(options: Dict[str, Any]) -> Dict[str, Any]:
    """The part that says where tensors live."""
    return {k: v for k, v in options.items() if k.startswith("location_")}
