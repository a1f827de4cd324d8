"""The groups of poptorch.Options: Training, Precision, TensorLocations, _Popart."""

from __future__ import annotations

from typing import Any, Dict, List, Set, Union

import torch

from poptorch.enums import ReductionType
from poptorch.settings import Freezable, Settings


class PopartOptions(Freezable):
    """Options of PopART by name; names and types are looked at when a model is compiled."""

    def __init__(self) -> None:
        self.options: Dict[str, Any] = {}
        super().__init__()
        self.set("instrumentWithHardwareCycleCounter", False)
        self.set("rearrangeAnchorsOnHost", False)

    def set(self, key: str, value: Union[int, float, str, List[str], Set[str]]) -> PopartOptions:
        self._check_not_frozen()
        self.options[key] = value
        return self

    def setPatterns(self, patterns: Dict[str, bool], level: int = 2) -> PopartOptions:
        assert isinstance(level, int), f"a level is an int, found {level!r}"
        assert isinstance(patterns, dict), f"patterns come as a dict, found {patterns!r}"
        return self.set("patterns_level", level).set("patterns", patterns)  # type: ignore[arg-type]


class PrecisionOptions(Settings):
    def __init__(self, popart: PopartOptions) -> None:
        self._popart = popart
        super().__init__()

    def enableStochasticRounding(self, enabled: bool) -> PrecisionOptions:
        self._popart.set("enableStochasticRounding", enabled)
        return self

    def setPartialsType(self, dtype: torch.dtype) -> PrecisionOptions:
        names = {torch.float32: "float", torch.float16: "half"}
        if dtype not in names:
            raise ValueError(f"partials are torch.float or torch.half, found {dtype}")
        self._popart.set("partialsTypeMatMuls", names[dtype])
        self._popart.set("convolutionOptions", {"partialsType": names[dtype]})  # type: ignore[arg-type]
        return self


class TrainingOptions(Settings):
    def __init__(self, popart: PopartOptions) -> None:
        self._popart = popart
        super().__init__(
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=ReductionType.Mean,
        )

    def gradientAccumulation(self, gradient_accumulation: int) -> TrainingOptions:
        self._set("gradient_accumulation", gradient_accumulation)
        return self

    def accumulationAndReplicationReductionType(self, reduction_type: ReductionType) -> TrainingOptions:
        if reduction_type not in (ReductionType.Mean, ReductionType.Sum) or not isinstance(
            reduction_type, ReductionType
        ):
            raise ValueError(f"gradients are reduced by ReductionType.Mean or .Sum, found {reduction_type!r}")
        self._set("accumulation_and_replication_reduction_type", reduction_type)
        return self

    def setAutomaticLossScaling(self, enabled: bool) -> TrainingOptions:
        self._popart.set("automaticLossScalingSettings.enabled", enabled)
        return self


class TensorLocationSettings(Settings):
    def __init__(self, **default_values: Any) -> None:
        super().__init__(**default_values)

    def _flag(self, name: str, use: bool) -> TensorLocationSettings:
        assert isinstance(use, bool), f"{name} is on or off, found {use!r}"
        self._set(name, int(use), new=True)
        return self

    def useOnChipStorage(self, use: bool = True) -> TensorLocationSettings:
        return self._flag("onChip", use)

    def useReplicatedTensorSharding(self, use: bool = True) -> TensorLocationSettings:
        return self._flag("useReplicatedTensorSharding", use)


class TensorLocationOptions(Settings):
    def setOptimizerLocation(self, location: TensorLocationSettings) -> TensorLocationOptions:
        assert isinstance(location, TensorLocationSettings), f"TensorLocationSettings, found {location!r}"
        self._set("location_optimizer", location.toDict(), new=True)
        return self
