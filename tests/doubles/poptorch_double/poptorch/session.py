"""Names and types of session options: what reaches the compiler, or is refused by it."""

from __future__ import annotations

from typing import Any, Dict, List

from poptorch.errors import refusal

_OPTIONS = {
    bool: """
        auto_round_num_ipus enableStochasticRounding enableExplicitIR enableEngineCaching
        instrumentWithHardwareCycleCounter rearrangeAnchorsOnHost disableGradAccumulationTensorStreams
        scheduleNonWeightUpdateGradientConsumersEarly automaticLossScalingSettings.enabled
        """,
    int: """
        execution_mode replication_factor device_iterations output_mode connection_type random_seed
        gradient_accumulation ipu_version accumulation_and_replication_reduction_type
        accumulateOuterFragmentSettings.schedule subgraphCopyingStrategy
        """,
    float: "outlineThreshold",
    str: "cachePath partialsTypeMatMuls saveInitializersToFile",
    list: "accumulateOuterFragmentSettings.excludedVirtualGraphs engineOptions convolutionOptions",
}
"""Type -> names. The type of the Python value decides where a name is looked up, so 10 is not an outlineThreshold."""
KNOWN = {kind: frozenset(names.split()) for kind, names in _OPTIONS.items()}


def option_calls(options: Dict[str, Any]) -> List[List[Any]]:
    calls: List[List[Any]] = []
    for name, value in options.items():
        if name != "patterns_level":
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
        if not 0 <= value <= (3 if name == "accumulateOuterFragmentSettings.schedule" else 2**64 - 1):
            raise refusal(f"option {name}: {value} is out of range")
        return [["addUint64Option", name, int(_known(int, name, value))]]
    if isinstance(value, float):
        return [["addDoubleOption", name, _known(float, name, value)]]
    return [["addStringOption", name, _known(str, name, value)]]


def _mapping_calls(name: str, value: Dict[Any, Any], options: Dict[str, Any]) -> List[List[Any]]:
    if name == "available_memory_proportion":
        return [["setMemoryProportion", int(ipu), float(share)] for ipu, share in value.items()]
    if name == "patterns":
        if not all(isinstance(enabled, bool) for enabled in value.values()):
            raise refusal(f"patterns are on or off: {value}")
        patterns: List[List[Any]] = [["addPattern", key, enabled] for key, enabled in value.items()]
        return [["setPatternsLevel", options["patterns_level"]], *patterns]
    if name == "location_optimizer":
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
