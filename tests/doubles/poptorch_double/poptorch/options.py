"""poptorch.Options: everything that decides how a model is compiled and run."""

from __future__ import annotations

import copy
import sys
from typing import Any, Dict, Optional

import torch

from poptorch.enums import ConnectionType, OutputMode
from poptorch.option_groups import PopartOptions, PrecisionOptions, TensorLocationOptions, TrainingOptions
from poptorch.settings import Settings
from poptorch.strategies import PipelinedExecution


def show_progress() -> None:
    sys.stderr.write("\rGraph compilation: 100%|##########| 100/100\n")


class Options(Settings):
    """Setters return the options; an executor freezes what it is given and clone() gives a copy that is not."""

    def __init__(self) -> None:
        self._popart = PopartOptions()
        self._precision = PrecisionOptions(self._popart)
        self._training = TrainingOptions(self._popart)
        self._tensor_locations = TensorLocationOptions()
        self._execution_strategy = PipelinedExecution()
        self._progress_bar: Any = show_progress
        self._show_compilation_progress_bar = True
        super().__init__(
            replication_factor=1,
            device_iterations=1,
            auto_round_num_ipus=False,
            output_mode=OutputMode.Default.value,
            connection_type=ConnectionType.Always.value,
            available_memory_proportion={},
        )

    @property
    def Training(self) -> TrainingOptions:
        return self._training

    @property
    def Precision(self) -> PrecisionOptions:
        return self._precision

    @property
    def TensorLocations(self) -> TensorLocationOptions:
        return self._tensor_locations

    @property
    def _Popart(self) -> PopartOptions:
        return self._popart

    def deviceIterations(self, device_iterations: int) -> Options:
        self._set("device_iterations", device_iterations)
        return self

    def replicationFactor(self, replication_factor: int) -> Options:
        self._set("replication_factor", replication_factor)
        return self

    def setExecutionStrategy(self, strategy: PipelinedExecution) -> Options:
        assert isinstance(strategy, PipelinedExecution), f"no execution strategy: {strategy!r}"
        self._execution_strategy = strategy
        return self

    def setAvailableMemoryProportion(self, available_memory_proportion: Dict[str, float]) -> Options:
        for key in available_memory_proportion:
            assert key.startswith("IPU"), f"shares of memory are given as {{'IPU0': 0.2}}, found {key!r}"
        shares = {int(key[len("IPU") :]): share for key, share in available_memory_proportion.items()}
        self._set("available_memory_proportion", shares)
        return self

    def outputMode(self, output_mode: OutputMode, output_return_period: Optional[int] = None) -> Options:
        assert isinstance(output_mode, OutputMode), f"no OutputMode: {output_mode!r}"
        self._set("output_mode", output_mode.value)
        return self

    def defaultOutputMode(self) -> bool:
        return bool(self.output_mode == OutputMode.Default)

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Options:
        self._set("connection_type", ConnectionType.Never.value)
        self._set("ipu_version", ipu_version, new=True)
        return self

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> Options:
        self._set("auto_round_num_ipus", auto_round_num_ipus)
        return self

    def randomSeed(self, random_seed: int) -> Options:
        assert isinstance(random_seed, int), f"a seed is an int, found {random_seed!r}"
        torch.manual_seed(random_seed)
        self._set("random_seed", random_seed, new=True)
        return self

    def enableExecutableCaching(self, path: Optional[str]) -> Options:
        if path is not None:
            self._popart.set("cachePath", path)
        self._popart.set("enableEngineCaching", path is not None)
        return self

    def showCompilationProgressBar(self, show: bool = True) -> Options:
        self._show_compilation_progress_bar = show
        return self

    def toDict(self) -> Dict[str, Any]:
        values: Dict[str, Any] = {"execution_mode": self._execution_strategy.execution_mode}
        for part in (self._popart.options, self._values, self._training._values, self._tensor_locations._values):
            values.update(part)
        return values

    def clone(self) -> Options:
        return copy.deepcopy(self)
