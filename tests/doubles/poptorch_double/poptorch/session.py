"""Names and types of session options: what reaches the compiler, or is refused by it."""

from poptorch.kinds import refusal

_OPTIONS = {
    bool: """
        auto_round_num_ipus enableStochasticRounding enableExplicitIR enableEngineCaching
        disableGradAccumulationTensorStreams
        scheduleNonWeightUpdateGradientConsumersEarly automaticLossScalingSettings.enabled
        """,
    int: """
        execution_mode replication_factor device_iterations output_mode connection_type random_seed
        gradient_accumulation ipu_version accumulation_and_replication_reduction_type patterns_level
        accumulateOuterFragmentSettings.schedule subgraphCopyingStrategy
        """,
    float: "outlineThreshold",
    str: "cachePath partialsTypeMatMuls",
    list: "accumulateOuterFragmentSettings.excludedVirtualGraphs engineOptions convolutionOptions",
}
"""Type -> names. The type of the Python value decides where a name is looked up, so 10 is not an outlineThreshold."""
_CALLS = {bool: "addBoolOption", int: "addUint64Option", float: "addDoubleOption", str: "addStringOption"}


def option_calls(options):
    """[function, name, value] of every option that is one value; the others are looked at."""
    calls = []
    for name, value in options.items():
        if name == "available_memory_proportion":
            calls += [["setMemoryProportion", ipu, float(share)] for ipu, share in value.items()]
        elif name == "patterns":
            if not all(isinstance(enabled, bool) for enabled in value.values()):
                raise refusal(f"patterns are on or off: {value}")
        elif isinstance(value, (list, dict)):
            if name != "location_optimizer":
                _check_texts(name, value)
        else:
            calls.append(_call(name, value))
    return calls


def _call(name, value):
    kind = next(kind for kind in _CALLS if isinstance(value, kind))
    _check_name(kind, name, value)
    if kind is int and not 0 <= value <= (3 if name == "accumulateOuterFragmentSettings.schedule" else 2**64 - 1):
        raise refusal(f"option {name}: {value} is out of range")
    return [_CALLS[kind], name, int(value) if kind is int else value]


def _check_texts(name, values):
    _check_name(list, name, values)
    for x in values.items() if isinstance(values, dict) else values:
        if not all(isinstance(part, str) for part in (x if isinstance(x, tuple) else [x])):
            raise refusal(f"option {name}: {x!r} is not a text")


def _check_name(kind, name, value):
    if name not in _OPTIONS[kind].split():
        raise refusal(f"there is no {kind.__name__} option {name} (value {value!r})")
