"""poptorch.Options: everything that decides how a model is compiled and run."""

import copy

import torch

from poptorch.kinds import AutoStage, OutputMode, ReductionType

NEVER = 2
"""The connection_type of a program that is compiled for IPUs that are not there."""


class PipelinedExecution:
    execution_mode = 0

    def __init__(self, *stages):
        assert stages == (AutoStage.AutoIncrement,), f"the double knows AutoIncrement alone: {stages}"


class ShardedExecution(PipelinedExecution):
    execution_mode = 1


class _Group:
    """Named values of known types; nothing changes once an executor has frozen them."""

    _frozen = False

    def __init__(self, **values):
        self._values = values

    def _set(self, name, value, new=False):
        if self._frozen:
            raise AttributeError("these options are in use by an executor: change a clone() of them instead")
        assert new or name in self._values, f"there is no option {name}: {sorted(self._values)}"
        if name in self._values:
            wanted = type(self._values[name])
            assert isinstance(value, wanted), f"option {name} takes {wanted.__name__}, found {value!r}"
        self._values[name] = value
        return self

    def __getattr__(self, name):
        values = self.__dict__.get("_values", {})
        if name not in values:
            raise AttributeError(f"{type(self).__name__} has no option {name}")
        return values[name]


def _setter(name):
    def set_value(self, value):
        return self._set(name, value)

    return set_value


class _Popart(_Group):
    """Options of PopART by name; names and types are looked at when a model is compiled."""

    def set(self, key, value):
        return self._set(key, value, new=True)

    def setPatterns(self, patterns, level=2):
        return self.set("patterns_level", level).set("patterns", patterns)


class _Precision:
    def __init__(self, popart):
        self._popart = popart

    def enableStochasticRounding(self, enabled):
        self._popart.set("enableStochasticRounding", enabled)

    def setPartialsType(self, dtype):
        names = {torch.float32: "float", torch.float16: "half"}
        if dtype not in names:
            raise ValueError(f"partials are torch.float or torch.half, found {dtype}")
        self._popart.set("partialsTypeMatMuls", names[dtype])
        self._popart.set("convolutionOptions", {"partialsType": names[dtype]})


class _Training(_Group):
    def __init__(self, popart):
        self._popart = popart
        super().__init__(gradient_accumulation=1, accumulation_and_replication_reduction_type=ReductionType.Mean)

    gradientAccumulation = _setter("gradient_accumulation")
    accumulationAndReplicationReductionType = _setter("accumulation_and_replication_reduction_type")

    def setAutomaticLossScaling(self, enabled):
        self._popart.set("automaticLossScalingSettings.enabled", enabled)


class TensorLocationSettings(_Group):
    def useOnChipStorage(self, use=True):
        return self._flag("onChip", use)

    def useReplicatedTensorSharding(self, use=True):
        return self._flag("useReplicatedTensorSharding", use)

    def _flag(self, name, use):
        assert isinstance(use, bool), f"{name} is on or off, found {use!r}"
        return self._set(name, int(use), new=True)


class _TensorLocations(_Group):
    def setOptimizerLocation(self, location):
        assert isinstance(location, TensorLocationSettings), f"TensorLocationSettings, found {location!r}"
        return self._set("location_optimizer", dict(location._values), new=True)


class Options(_Group):
    """Setters return the options; an executor freezes what it is given and works with a copy."""

    def __init__(self):
        self._Popart, self.TensorLocations = _Popart(), _TensorLocations()
        self.Precision, self.Training = _Precision(self._Popart), _Training(self._Popart)
        self._strategy = None
        super().__init__(
            replication_factor=1,
            device_iterations=1,
            auto_round_num_ipus=False,
            output_mode=OutputMode.Default,
            connection_type=0,
            available_memory_proportion={},
        )

    deviceIterations = _setter("device_iterations")
    replicationFactor = _setter("replication_factor")
    outputMode = _setter("output_mode")
    autoRoundNumIPUs = _setter("auto_round_num_ipus")

    def setExecutionStrategy(self, strategy):
        assert isinstance(strategy, PipelinedExecution), f"no execution strategy: {strategy!r}"
        self._strategy = strategy
        return self

    def setAvailableMemoryProportion(self, available_memory_proportion):
        for key in available_memory_proportion:
            assert key.startswith("IPU"), f"shares of memory are given as {{'IPU0': 0.2}}, found {key!r}"
        shares = {int(key[len("IPU") :]): share for key, share in available_memory_proportion.items()}
        return self._set("available_memory_proportion", shares)

    def useOfflineIpuTarget(self, ipu_version=2):
        return self._set("connection_type", NEVER)._set("ipu_version", ipu_version, new=True)

    def randomSeed(self, random_seed):
        assert isinstance(random_seed, int), f"a seed is an int, found {random_seed!r}"
        torch.manual_seed(random_seed)
        return self._set("random_seed", random_seed, new=True)

    def enableExecutableCaching(self, path):
        self._Popart.set("cachePath", path).set("enableEngineCaching", True)
        return self

    def _freeze(self, frozen=True):
        for group in (self, self._Popart, self.Training, self.TensorLocations):
            group._frozen = frozen

    def _thawed_copy(self):
        made = copy.deepcopy(self)
        made._freeze(False)
        return made

    def _all(self):
        mode = 0 if self._strategy is None else self._strategy.execution_mode
        groups = (self._Popart, self, self.Training, self.TensorLocations)
        return {"execution_mode": mode, **{name: x for group in groups for name, x in group._values.items()}}
