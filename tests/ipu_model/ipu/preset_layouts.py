"""How every IPU preset lays a BERT over IPUs, written down a second time and not read from the presets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple, Union

from ipu_model.jobs.job import OptimizerConfig
from tests.optimizers import optimizer_config

BASE, LARGE = (0, 4, 4, 4), (3, 7, 7, 7)
"""Encoder layers on each IPU."""


def lamb(loss_scaling: float, **changes: Any) -> OptimizerConfig:
    """Of Graphcore's examples; the rate is compiled as a variable and does not change the layout."""
    return optimizer_config("lamb", loss_scaling=loss_scaling, **{"first_moment_precision": "fp32", **changes})


def adamw(loss_scaling: float, **changes: Any) -> OptimizerConfig:
    """The same for SQuAD."""
    return optimizer_config("adamw", loss_scaling=loss_scaling, **changes)


OPTIMUM: Dict[str, Any] = {"bias_correction": False, "eps": 1e-8, "first_moment_precision": "auto"}
"""What Optimum has otherwise in pre-training."""


@dataclass(frozen=True)
class Layout:
    presets: str
    """Names without "ipu-"."""
    job: str
    """phase1, phase2, finetune or predict."""
    layers: Tuple[int, ...]
    replicas: int
    memory: Union[float, Tuple[float, ...]]
    """matmul_proportion, of all IPUs or of each."""
    optimizer: Optional[OptimizerConfig] = None
    """None in predict."""
    factor: int = 1
    """embedding_serialization_factor."""
    memory_saving: str = ""
    """Which of offchip, sharded (the optimizer state) and auto_loss_scaling are on."""
    iterations: int = 1
    """Device iterations: updates of a call in fine-tuning, micro-batches of a call in predict."""
    head_on: Optional[int] = None
    """IPU of the question answering head where it has a stage of its own; None = with the last layers."""

    @property
    def name(self) -> str:
        return f"{self.job}-{self.presets.split()[0]}"

    @property
    def head(self) -> str:
        return "pretraining" if self.job.startswith("phase") else "question_answering"

    @property
    def training(self) -> bool:
        return self.job != "predict"

    @property
    def table_pieces(self) -> int:
        """Parameters of the word table: tied to the decoder, or trained by LAMB, it stays one."""
        whole = self.job.startswith("phase") or (self.optimizer is not None and self.optimizer.name == "lamb")
        return 1 if whole else self.factor

    @property
    def offchip(self) -> bool:
        return "offchip" in self.memory_saving

    @property
    def sharded(self) -> bool:
        return "sharded" in self.memory_saving

    def ipu_config(self) -> Dict[str, Any]:
        """The keys that a preset states for this job."""
        mode = "" if self.training else "inference_"
        memory = list(self.memory) if isinstance(self.memory, tuple) else self.memory
        config: Dict[str, Any] = {f"{mode}replication_factor": self.replicas, f"{mode}matmul_proportion": memory}
        if self.head_on is None:
            config[f"{mode}layers_per_ipu"] = list(self.layers)
        else:
            stages = [["hid"] * count for count in self.layers]
            stages[0].insert(0, "emb")
            if sum(self.layers) == 24:  # the large files name what has no block of its own
                stages[-1] += ["enc_out", "pool"]
            config.update(pipeline_stages=[*stages, ["qa_head"]], device_mapping=[0, 1, 2, 3, self.head_on])
        if self.factor != 1:
            config["embedding_serialization_factor"] = self.factor
        if self.job == "finetune":
            config["device_iterations"] = self.iterations
        if not self.training:
            return {**config, "inference_device_iterations": self.iterations}
        if "auto_loss_scaling" in self.memory_saving:
            config["auto_loss_scaling"] = True
        return {
            **config,
            "optimizer_state_offchip": self.offchip,
            "replicated_tensor_sharding": self.sharded,
            "recompute_checkpoint_every_layer": True,
        }


EXAMPLES = " ".join(f"large-{pod}-examples{kind}" for pod in ("pod16", "pod64") for kind in ("", "-als", "-packed"))
"""One SQuAD recipe after every pre-training."""

# fmt: off
LAYOUTS: List[Layout] = [
    Layout("base-pod16-examples", "phase1", BASE, 4, 0.25, lamb(16384, bias_correction=False),
           memory_saving="offchip sharded"),
    Layout("base-pod16-optimum", "phase1", BASE, 4, 0.25, lamb(16384, **OPTIMUM), memory_saving="sharded"),
    Layout("base-pod16-paddle", "phase1", BASE, 4, 0.28, lamb(512, bias_correction=False), memory_saving="offchip"),
    Layout("base-pod16-tf2-384 base-pod16-tf2-512", "phase1", BASE, 4, (0.28, 0.26, 0.28, 0.28), lamb(4096),
           factor=2, memory_saving="offchip"),
    Layout("base-pod4-examples", "phase1", BASE, 1, 0.25, lamb(16384, bias_correction=False),
           memory_saving="offchip sharded"),
    Layout("base-pod4-tf2-384 base-pod4-tf2-512", "phase1", BASE, 1, (0.28, 0.26, 0.28, 0.28), lamb(4096), factor=2,
           memory_saving="offchip"),
    Layout("large-pod16-examples-8ipu large-pod16-examples-packed large-pod16-examples", "phase1", LARGE, 4,
           (0.15, 0.25, 0.25, 0.25), lamb(4096), factor=2, memory_saving="offchip sharded"),
    Layout("large-pod16-examples-als", "phase1", LARGE, 4, (0.13, 0.2, 0.2, 0.2), lamb(1), factor=2,
           memory_saving="offchip sharded auto_loss_scaling"),
    Layout("large-pod16-optimum", "phase1", LARGE, 4, (0.14, 0.19, 0.19, 0.19), lamb(32768, **OPTIMUM), factor=2,
           memory_saving="offchip sharded"),
    Layout("large-pod16-tf2-384 large-pod16-tf2-512", "phase1", LARGE, 4, (0.1, 0.19, 0.2, 0.25), lamb(32768),
           factor=2, memory_saving="offchip"),
    Layout("large-pod4-examples-packed large-pod4-examples", "phase1", LARGE, 1, (0.15, 0.25, 0.25, 0.25),
           lamb(4096), factor=2, memory_saving="offchip sharded"),
    Layout("large-pod4-tf2-384 large-pod4-tf2-512", "phase1", LARGE, 1, (0.1, 0.19, 0.2, 0.25), lamb(32768),
           factor=2, memory_saving="offchip"),
    Layout("large-pod64-examples-als", "phase1", LARGE, 16, (0.05, 0.13, 0.13, 0.13), lamb(1), factor=6,
           memory_saving="offchip sharded auto_loss_scaling"),
    Layout("large-pod64-examples-packed large-pod64-examples", "phase1", LARGE, 16, (0.14, 0.19, 0.19, 0.19),
           lamb(32768), factor=2, memory_saving="offchip sharded"),
    Layout("large-pod64-optimum", "phase1", LARGE, 16, (0.14, 0.19, 0.19, 0.19), lamb(32768, **OPTIMUM), factor=2,
           memory_saving="offchip sharded"),
    Layout("large-pod64-tf2-384", "phase1", LARGE, 16, (0.1, 0.19, 0.2, 0.2), lamb(32768), factor=6,
           memory_saving="offchip sharded"),
    Layout("base-pod16-examples", "phase2", BASE, 4, 0.25, lamb(128, bias_correction=False), factor=2,
           memory_saving="offchip sharded"),
    Layout("base-pod16-optimum", "phase2", BASE, 4, 0.22, lamb(128, **OPTIMUM), factor=2, memory_saving="sharded"),
    Layout("base-pod16-paddle", "phase2", BASE, 4, 0.28, lamb(128, bias_correction=False), memory_saving="offchip"),
    Layout("base-pod16-tf2-384", "phase2", BASE, 4, (0.28, 0.26, 0.28, 0.28), lamb(4096), factor=2,
           memory_saving="offchip"),
    Layout("base-pod16-tf2-512", "phase2", BASE, 4, (0.2, 0.2, 0.2, 0.2), lamb(4096), factor=2,
           memory_saving="offchip"),
    Layout("base-pod4-examples", "phase2", BASE, 1, 0.25, lamb(128, bias_correction=False), factor=2,
           memory_saving="offchip sharded"),
    Layout("base-pod4-tf2-384", "phase2", BASE, 1, (0.28, 0.26, 0.28, 0.28), lamb(4096), factor=2,
           memory_saving="offchip"),
    Layout("base-pod4-tf2-512", "phase2", BASE, 1, (0.2, 0.2, 0.2, 0.2), lamb(4096), factor=2,
           memory_saving="offchip"),
    Layout("large-pod16-examples-8ipu large-pod16-examples-als large-pod16-examples-packed large-pod16-examples",
           "phase2", LARGE, 4, (0.1, 0.15, 0.15, 0.15), lamb(8192), factor=2, memory_saving="offchip sharded"),
    Layout("large-pod16-optimum", "phase2", LARGE, 4, (0.14, 0.19, 0.19, 0.19), lamb(16384, **OPTIMUM), factor=2,
           memory_saving="offchip sharded"),
    Layout("large-pod16-tf2-384", "phase2", LARGE, 4, (0.15, 0.28, 0.4, 0.4), lamb(32768), factor=2,
           memory_saving="offchip"),
    Layout("large-pod16-tf2-512", "phase2", (2, 7, 7, 8), 4, (0.05, 0.1, 0.1, 0.1), lamb(32768), factor=2,
           memory_saving="offchip"),
    Layout("large-pod4-examples-packed large-pod4-examples", "phase2", LARGE, 1, (0.1, 0.15, 0.15, 0.15),
           lamb(8192), factor=2, memory_saving="offchip sharded"),
    Layout("large-pod4-tf2-384", "phase2", LARGE, 1, (0.15, 0.28, 0.4, 0.4), lamb(32768), factor=2,
           memory_saving="offchip"),
    Layout("large-pod4-tf2-512", "phase2", (2, 7, 7, 8), 1, (0.05, 0.1, 0.1, 0.1), lamb(32768), factor=2,
           memory_saving="offchip"),
    Layout("large-pod64-examples-als large-pod64-examples-packed large-pod64-examples", "phase2", LARGE, 16,
           (0.13, 0.19, 0.19, 0.19), lamb(16384), factor=2, memory_saving="offchip sharded"),
    Layout("large-pod64-optimum", "phase2", LARGE, 16, (0.14, 0.19, 0.19, 0.19), lamb(16384, **OPTIMUM), factor=2,
           memory_saving="offchip sharded"),
    Layout("large-pod64-tf2-384", "phase2", LARGE, 16, (0.15, 0.2, 0.2, 0.25), lamb(32768), factor=6,
           memory_saving="offchip"),
    Layout("base-pod16-examples", "finetune", BASE, 4, 0.25, adamw(64), memory_saving="sharded", iterations=2),
    Layout("base-pod4-optimum-packed", "finetune", BASE, 1, 0.22, adamw(64, eps=1e-8), memory_saving="sharded",
           iterations=32),
    Layout("base-pod16-optimum base-pod16-run-qa", "finetune", BASE, 4, 0.25, adamw(64, eps=1e-8),
           memory_saving="sharded"),
    Layout("base-pod16-paddle", "finetune", (6, 6), 4, 0.4,
           adamw(256, first_moment_precision="fp32", weight_decay=0.0), memory_saving="sharded", iterations=4),
    Layout("base-pod16-run-qa-fast", "finetune", (6, 6), 8, 0.2, adamw(64, eps=1e-8), factor=2,
           memory_saving="sharded", iterations=8),
    Layout("base-pod16-tf2-384 base-pod16-tf2-512", "finetune", BASE, 4, (0.25, 0.23, 0.28, 0.25), lamb(1),
           factor=2, head_on=0, memory_saving="offchip"),
    Layout("base-pod4-examples", "finetune", BASE, 1, 0.25, adamw(64), memory_saving="sharded", iterations=2),
    Layout("base-pod4-tf2-384 base-pod4-tf2-512", "finetune", BASE, 1, (0.25, 0.23, 0.28, 0.25), lamb(1), factor=2,
           head_on=0, memory_saving="offchip"),
    Layout("large-pod16-examples-8ipu", "finetune", (2, 3, 3, 3, 3, 3, 3, 4), 2,
           (0.08, 0.25, 0.32, 0.32, 0.36, 0.38, 0.4, 0.32), adamw(64), memory_saving="sharded", iterations=2),
    Layout(EXAMPLES, "finetune", LARGE, 4, (0.15, 0.25, 0.25, 0.25), adamw(64), memory_saving="offchip sharded"),
    Layout("large-pod16-optimum large-pod16-notebook large-pod64-optimum", "finetune", LARGE, 4,
           (0.15, 0.18, 0.2, 0.25), adamw(1, eps=1e-8, weight_decay=0.0), factor=2, memory_saving="offchip sharded"),
    Layout("large-pod16-notebook-fast", "finetune", LARGE, 4, (0.15, 0.18, 0.2, 0.25),
           adamw(1, eps=1e-8, weight_decay=0.0), factor=2, memory_saving="offchip sharded", iterations=8),
    Layout("large-pod16-tf2-384 large-pod16-tf2-512 large-pod64-tf2-384", "finetune", LARGE, 4,
           (0.08, 0.15, 0.15, 0.15), lamb(1), factor=2, head_on=0, memory_saving="offchip"),
    Layout("large-pod4-examples-packed large-pod4-examples", "finetune", LARGE, 1, (0.15, 0.25, 0.25, 0.25),
           adamw(64), memory_saving="offchip sharded"),
    Layout("large-pod4-tf2-384 large-pod4-tf2-512", "finetune", LARGE, 1, (0.08, 0.15, 0.15, 0.15), lamb(1),
           factor=2, head_on=0, memory_saving="offchip"),
    Layout("base-pod16-examples base-pod16-run-qa-fast", "predict", (6, 6), 8, 0.25, iterations=4),
    Layout("base-pod4-optimum-packed", "predict", BASE, 1, 0.22, iterations=64),
    Layout("base-pod16-optimum base-pod16-run-qa", "predict", BASE, 4, 0.25, iterations=5),
    Layout("base-pod16-paddle", "predict", (6, 6), 4, 0.4, iterations=4),
    Layout("base-pod16-tf2-384 base-pod16-tf2-512", "predict", BASE, 4, (0.25, 0.23, 0.28, 0.25), iterations=5,
           head_on=0),
    Layout("base-pod4-examples", "predict", (6, 6), 2, 0.25, iterations=4),
    Layout("base-pod4-tf2-384 base-pod4-tf2-512", "predict", BASE, 1, (0.25, 0.23, 0.28, 0.25), iterations=5,
           head_on=0),
    Layout(EXAMPLES + " large-pod16-examples-8ipu large-pod16-notebook-fast", "predict", (12, 12), 8, 0.25,
           iterations=4),
    Layout("large-pod16-optimum large-pod16-notebook large-pod64-optimum", "predict", LARGE, 4,
           (0.15, 0.18, 0.2, 0.25), iterations=4),
    Layout("large-pod16-tf2-384 large-pod16-tf2-512 large-pod64-tf2-384", "predict", LARGE, 4,
           (0.08, 0.15, 0.15, 0.15), iterations=5, head_on=0),
    Layout("large-pod4-examples-packed large-pod4-examples", "predict", (12, 12), 2, 0.25, iterations=4),
    Layout("large-pod4-tf2-384 large-pod4-tf2-512", "predict", LARGE, 1, (0.08, 0.15, 0.15, 0.15), iterations=5,
           head_on=0),
]
# fmt: on
