"""poptorch.Options: everything that decides how a model is compiled and run."""

from __future__ import annotations

import copy
import datetime
import json
import os
import sys
import time
from typing import Any, Dict, Optional

import torch

from poptorch import enums
from poptorch.enums import CommGroupType, ConnectionType, OutputMode, SyncPattern
from poptorch.option_groups import (
    DistributedOptions,
    PopartOptions,
    PrecisionOptions,
    TensorLocationOptions,
    TrainingOptions,
)
from poptorch.settings import Settings
from poptorch.strategies import PipelinedExecution


class ProgressBar:
    """Called with (progress, total) while a model compiles; keeps the time that took."""

    def __init__(self) -> None:
        self.compilation_time: Optional[datetime.timedelta] = None
        self._started: Optional[float] = None

    def __call__(self, progress: int, total: int) -> None:
        if self._started is None:
            self._started = time.perf_counter()
        self.compilation_time = datetime.timedelta(seconds=time.perf_counter() - self._started)
        if progress == total:
            self._started = None
            sys.stderr.write(f"Graph compilation: {progress}/{total} in {self.compilation_time}\n")


class Options(Settings):
    """Setters return the options; an executor freezes what it is given and clone() gives a copy that is not."""

    def __init__(self) -> None:
        self._popart = PopartOptions()
        self._precision = PrecisionOptions(self._popart)
        self._training = TrainingOptions(self._popart)
        self._distributed = DistributedOptions()
        self._tensor_locations = TensorLocationOptions()
        self._execution_strategy = PipelinedExecution()
        self._progress_bar: Any = ProgressBar()
        self._show_compilation_progress_bar = True
        self._relax_optimizer_checks = False
        self._module_namescope_enabled = True
        super().__init__(
            replication_factor=1,
            input_group_size=1,
            input_cgt=CommGroupType.Consecutive,
            broadcast_buffers=True,
            device_iterations=1,
            log_dir=".",
            max_repeat_logs=4,
            auto_round_num_ipus=False,
            anchored_tensors={},
            output_mode=OutputMode.Default.value,
            output_return_period=1,
            connection_type=ConnectionType.Always.value,
            sync_pattern=SyncPattern.Full.value,
            available_memory_proportion={},
        )
        if os.environ.get("POPTORCH_CACHE_DIR"):
            self.enableExecutableCaching(os.environ["POPTORCH_CACHE_DIR"])
        self.from_json(os.environ.get("POPTORCH_DEFAULT_OPTIONS", "{}"))

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
    def Distributed(self) -> DistributedOptions:
        return self._distributed

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
        if output_mode == OutputMode.EveryN:
            assert output_return_period, "OutputMode.EveryN needs an output_return_period above 0"
            assert output_return_period > 0, f"output_return_period={output_return_period} must be above 0"
        self._set("output_mode", output_mode.value)
        self._set("output_return_period", output_return_period or 1)
        return self

    def defaultOutputMode(self) -> bool:
        return bool(self.output_mode == OutputMode.Default)

    def connectionType(self, connection_type: ConnectionType) -> Options:
        assert isinstance(connection_type, ConnectionType), f"no ConnectionType: {connection_type!r}"
        self._set("connection_type", connection_type.value)
        return self

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Options:
        self.connectionType(ConnectionType.Never)
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

    def from_json(self, string: str) -> Options:
        """Apply {"Group.setter": value, list of arguments, or "Enum.Member"}."""
        for path, value in json.loads(string).items():
            target: Any = self
            for name in path.split("."):
                target = getattr(target, name)
            kind, _, member = value.partition(".") if isinstance(value, str) else ("", "", "")
            if member and hasattr(enums, kind):
                value = getattr(getattr(enums, kind), member)
            target(*(value if isinstance(value, list) else [value]))
        return self

    def toDict(self) -> Dict[str, Any]:
        assert not self.defaultOutputMode(), "the output mode is still Default"
        values: Dict[str, Any] = {"execution_mode": self._execution_strategy.execution_mode}
        for part in (self._popart.options, self._values, self._training._values, self._distributed._values):
            values.update(part)
        values.update(self._tensor_locations._values)
        if self._show_compilation_progress_bar:
            values["compilation_progress_bar_fn"] = self._progress_bar
        return values

    def clone(self) -> Options:
        return copy.deepcopy(self)
