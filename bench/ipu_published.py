"""Published throughput of BERT on IPUs, with the layouts used. Data only.

Sources: Graphcore's page of performance results (fp16.16, Bow Pods; a release of the SDK in brackets), the README of
PaddleNLP's examples/language_model/bert/static_ipu, all_results.json of Graphcore/bert-base-uncased on the Hub, and two
notebooks of Optimum Graphcore. Batches are those of the page; micro-batches and placements those of the framework's own
example for that system (graphcore/examples:nlp/bert, PaddleNLP, huggingface/optimum-graphcore), as the page has none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ipu_model.estimates.ipu_constants import BOW, MK2, Generation
from ipu_model.estimates.ipu_time import IpuProgram
from ipu_model.estimates.shapes import RowShape
from ipu_model.ipu.placement import place_by_layers
from ipu_model.models.config import ModelConfig

BASE = ModelConfig(vocab_size=30522)
LARGE = ModelConfig(vocab_size=30522, hidden_size=1024, num_layers=24, num_heads=16, intermediate_size=4096)
MODELS = {"base": BASE, "large": LARGE}
FOUR = {"base": (0, 4, 4, 4), "large": (3, 7, 7, 7)}
EIGHT = (2, 3, 3, 3, 3, 3, 3, 4)
PRETRAINING, ANSWERS = "pretraining", "question_answering"
PACKING = {128: 1.17, 512: 2.0}
"""Sequences per packed row on Wikipedia: graphcore/examples:nlp/bert/pytorch/configs_pretraining.yml."""
PAGE = "Graphcore's page"


@dataclass(frozen=True)
class Published:
    """A published throughput."""

    model: str
    length: int
    masked: int
    """Masked slots per row; a packed row has two more."""
    generation: Generation
    replicas: int
    framework: str
    rate: float
    """Sequences per second."""
    rows_per_update: int
    micro_batch_size: int
    source: str
    packed: bool = False
    head: str = PRETRAINING
    layers: tuple[int, ...] = field(default=())
    """Layers on each IPU; () = those of FOUR."""
    offchip: bool = True
    """True if the optimizer state is off chip."""
    updates_per_call: int = 1

    @property
    def layout(self) -> tuple[str, int, str, int]:
        """Model, row length, head and number of IPUs, equal for rows of one layout."""
        return self.model, self.length, self.head, len(self.placed)

    @property
    def placed(self) -> tuple[int, ...]:
        """Layers on each IPU of a replica."""
        return self.layers or FOUR[self.model]

    @property
    def pytorch(self) -> bool:
        """True if a call has the host overhead of PyTorch."""
        return self.framework == "PyTorch"

    @property
    def fitted(self) -> bool:
        """True if the constants are fitted to this row: SQuAD on a Bow Pod16 is excluded, as its layout is a guess."""
        return self.head == PRETRAINING or self.generation is MK2

    @property
    def packing_factor(self) -> float:
        """Sequences per row."""
        return PACKING[self.length] if self.packed else 1.0

    @property
    def update_seconds(self) -> float:
        """Seconds per update at the published rate."""
        return self.rows_per_update * self.packing_factor / self.rate

    def training(self) -> IpuProgram:
        """Return the program to estimate; gradient accumulation follows from the rows per update."""
        model = MODELS[self.model]
        placement = place_by_layers(self.head, model.num_layers, list(self.placed), len(self.placed))
        rows = RowShape(self.length, self.masked, 3 if self.packed else 1, self.packing_factor)
        accumulation = round(self.rows_per_update / self.micro_batch_size / self.replicas)
        shape = (model, placement, rows, self.micro_batch_size, accumulation, self.replicas)
        return IpuProgram(*shape, self.updates_per_call, self.offchip, self.generation)


# fmt: off
PUBLISHED: tuple[Published, ...] = (
    Published("base", 128, 20, MK2, 4, "Paddle", 11700, 65536, 32, "PaddleNLP"),
    Published("base", 128, 20, BOW, 4, "PopART", 16391, 65536, 32, PAGE),
    Published("base", 128, 20, BOW, 4, "TF2", 15157, 65280, 32, f"{PAGE} [3.1]"),
    Published("base", 128, 20, BOW, 4, "TF2", 15173, 65280, 32, f"{PAGE} [3.3]"),
    Published("base", 128, 20, BOW, 4, "PyTorch", 15911, 65536, 32, f"{PAGE} [3.3]"),
    Published("base", 384, 56, MK2, 4, "Paddle", 3470, 16384, 8, "PaddleNLP"),
    Published("base", 384, 56, BOW, 4, "TF2", 4387, 16320, 8, PAGE),
    Published("base", 512, 96, MK2, 4, "PyTorch", 2409.4, 16384, 8, "Hub, all_results.json", offchip=False),
    Published("base", 512, 76, BOW, 4, "PopART", 3656, 16384, 8, PAGE),
    Published("large", 128, 20, BOW, 4, "PopART", 5179, 65280, 8, f"{PAGE} [before 2.5]"),
    Published("large", 128, 20, BOW, 4, "TF1", 5125, 65280, 8, f"{PAGE} [before 2.5]"),
    Published("large", 128, 20, BOW, 4, "TF2", 4528, 65280, 8, f"{PAGE} [3.1]"),
    Published("large", 128, 20, BOW, 4, "TF2", 4527, 65280, 8, f"{PAGE} [3.3]"),
    Published("large", 128, 22, BOW, 4, "PopART", 6044, 54784, 8, f"{PAGE} [3.1]", packed=True),
    Published("large", 128, 22, BOW, 4, "PyTorch", 5592, 56064, 8, f"{PAGE} [3.1]", packed=True),
    Published("large", 128, 22, BOW, 4, "PyTorch", 5600, 56064, 8, f"{PAGE} [3.3]", packed=True),
    Published("large", 128, 22, BOW, 16, "PopART", 22759, 54784, 8, PAGE, packed=True),
    Published("large", 128, 22, BOW, 16, "PyTorch", 18494, 56064, 8, f"{PAGE} [3.1]", packed=True),
    Published("large", 128, 22, BOW, 16, "PyTorch", 18442, 56064, 8, f"{PAGE} [3.2]", packed=True),
    Published("large", 128, 20, BOW, 16, "PopART", 19353, 65536, 8, PAGE),
    Published("large", 128, 20, BOW, 16, "TF1", 18907, 65280, 8, PAGE),
    Published("large", 128, 20, BOW, 16, "TF2", 18199, 130560, 8, f"{PAGE} [3.0]"),
    Published("large", 384, 56, BOW, 4, "PopART", 1470, 16384, 2, f"{PAGE} [before 2.5]"),
    Published("large", 384, 56, BOW, 4, "TF1", 1420, 16320, 2, f"{PAGE} [before 2.5]"),
    Published("large", 384, 56, BOW, 16, "PopART", 5444, 16384, 2, f"{PAGE} [before 2.5]"),
    Published("large", 384, 56, BOW, 16, "TF1", 5340, 16320, 2, f"{PAGE} [before 2.5]"),
    Published("large", 512, 78, BOW, 4, "PopART", 2126, 9600, 2, PAGE, packed=True),
    Published("large", 512, 78, BOW, 4, "PyTorch", 1969, 8192, 2, f"{PAGE} [3.1]", packed=True),
    Published("large", 512, 78, BOW, 4, "PyTorch", 1973, 8192, 2, f"{PAGE} [3.3]", packed=True),
    Published("large", 512, 78, BOW, 16, "PopART", 7789, 9600, 2, PAGE, packed=True),
    Published("large", 512, 78, BOW, 16, "PyTorch", 6510, 8192, 2, f"{PAGE} [3.1]", packed=True),
    Published("large", 512, 78, BOW, 16, "PyTorch", 6543, 8192, 2, f"{PAGE} [3.2]", packed=True),
    Published("base", 384, 0, MK2, 4, "PyTorch", 720.877, 256, 2, "Hugging Face's post", head=ANSWERS, offchip=False),
    Published("large", 384, 0, MK2, 4, "PyTorch", 361.48, 256, 1, "Graphcore's notebook", head=ANSWERS),
    Published("large", 384, 0, BOW, 2, "PopART", 1183, 256, 4, PAGE, head=ANSWERS, layers=EIGHT, offchip=False,
              updates_per_call=2),
    Published("large", 384, 0, BOW, 2, "PyTorch", 989, 256, 4, f"{PAGE} [3.1]", head=ANSWERS, layers=EIGHT,
              offchip=False, updates_per_call=2),
    Published("large", 384, 0, BOW, 2, "PyTorch", 1009, 256, 4, f"{PAGE} [3.3]", head=ANSWERS, layers=EIGHT,
              offchip=False, updates_per_call=2),
)
# fmt: on
