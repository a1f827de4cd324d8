"""What every preset of a recipe says, written down by hand from its source, not read from the presets."""

from collections import namedtuple
from dataclasses import dataclass, field
from typing import Any

Row = namedtuple(
    "Row",
    "row_length masks global_batch micro_batch replicas accumulation length learning_rate warmup loss_scaling layers "
    "forward_stages updates_per_call",
)
"""One job: the numbers a recipe is known by. Masked positions in a row, 0 in fine-tuning; updates of a phase, epochs
of fine-tuning; encoder layers on each IPU; updates with one learning rate."""


@dataclass
class Recipe:
    jobs: list[Row] = field(default_factory=list)
    """Phases 1 and 2 of pre-training, unless it starts from a given model, and fine-tuning."""
    predict: tuple[Any, ...] = ()
    """Rows in one micro-batch, replicas, device iterations, layers on each IPU."""

    @property
    def phases(self) -> dict[str, Row]:
        return dict(zip(("phase1", "phase2"), self.jobs[:-1], strict=False))

    @property
    def finetune(self) -> Row:
        return self.jobs[-1]


TABLE = """
base-pod16-optimum          128 32  65536 32  4  512 10500       .006    .28 16384         0-4-4-4 5  1
base-pod16-optimum          512 96  16384  8  4  512  2038    .002828   .128   128         0-4-4-4 5  1
base-pod16-optimum          384  0    128  2  4   16     3     .00007     .1    64         0-4-4-4 4  1 16 4  5 0-4-4-4
large-pod16-optimum         128 32  65536  8  4 2048 10500       .006    .28 32768         3-7-7-7 5  1
large-pod16-optimum         512 96  16384  2  4 2048  2038    .002828   .128 16384         3-7-7-7 5  1
large-pod16-optimum         384  0    256  1  4   64     2      .0002      0     1         3-7-7-7 4  1  2 4  4 3-7-7-7
large-pod64-optimum         128 32  65536  8 16  512 10550       .006    .28 32768         3-7-7-7 5  1
large-pod64-optimum         512 96  16384  2 16  512  2038    .002828   .128 16384         3-7-7-7 5  1
large-pod64-optimum         384  0    256  1  4   64     2      .0002      0     1         3-7-7-7 4  1  2 4  4 3-7-7-7
# 88524 features x 3 epochs / 1035 updates = 256.6
base-pod16-run-qa           384  0    256  2  4   32     3     .00006     .1    64         0-4-4-4 4  1 16 4  5 0-4-4-4
large-pod16-notebook        384  0    256  1  4   64     2      .0002      0     1         3-7-7-7 4  1  2 4  4 3-7-7-7
# 64 rows of 2.2 windows are 140.8; 140 / 2.2 / 2 = 31.8
base-pod4-optimum-packed    512  0    140  2  1   32     3     .00009    .25    64         0-4-4-4 4 32  8 1 64 0-4-4-4
# 256 / 2.18 windows in a row / (4 x 8) = 3.7, and / (2 x 4) = 14.7
base-pod16-run-qa-fast      384  0    256  4  8    4     3     .00006     .1    64             6-6 2  8 16 8  4     6-6
large-pod16-notebook-fast   384  0    256  2  4   15     2      .0002      0     1         3-7-7-7 4  8 20 8  4   12-12
# graphcore/examples, PyTorch
base-pod16-examples         128 20  65536 32  4  512  7038       .006    .28 16384         0-4-4-4 5  1
base-pod16-examples         512 76  16384  8  4  512  2137    .002828   .128   128         0-4-4-4 5  1
base-pod16-examples         384  0     32  1  4    8     3     .00006    .25    64         0-4-4-4 4  2 20 8  4     6-6
base-pod4-examples          128 20  65536 32  1 2048  7038       .006    .28 16384         0-4-4-4 5  1
base-pod4-examples          512 76  16384  8  1 2048  2137    .002828   .128   128         0-4-4-4 5  1
base-pod4-examples          384  0     32  1  1   32     3     .00006    .25    64         0-4-4-4 4  2 20 2  4     6-6
large-pod16-examples        128 20  65536  8  4 2048  7038       .006    .28  4096         3-7-7-7 5  1
large-pod16-examples        512 76  16384  2  4 2048  2137    .002828   .128  8192         3-7-7-7 5  1
large-pod16-examples        384  0    512  2  4   64     3     .00005     .1    64         3-7-7-7 4  1 20 8  4   12-12
large-pod16-examples-8ipu   128 20  65536  8  4 2048  7038       .006    .28  4096         3-7-7-7 5  1
large-pod16-examples-8ipu   512 76  16384  2  4 2048  2137    .002828   .128  8192         3-7-7-7 5  1
large-pod16-examples-8ipu   384  0    256  4  2   32     3     .00005     .1    64 2-3-3-3-3-3-3-4 8  2 20 8  4   12-12
large-pod16-examples-als    128 20  65536  8  4 2048  7038       .006    .28     1         3-7-7-7 5  1
large-pod16-examples-als    512 76  16384  2  4 2048  2137    .002828   .128  8192         3-7-7-7 5  1
large-pod16-examples-als    384  0    512  2  4   64     3     .00005     .1    64         3-7-7-7 4  1 20 8  4   12-12
# 65536 / 1.17 sequences in a row / 32 rows = 1750.4; 16384 / 2.0 / 8 = 1024
large-pod16-examples-packed 128 22  65536  8  4 1750  7038       .006    .28  4096         3-7-7-7 5  1
large-pod16-examples-packed 512 78  16384  2  4 1024  2137    .002828   .128  8192         3-7-7-7 5  1
large-pod16-examples-packed 384  0    512  2  4   64     3     .00005     .1    64         3-7-7-7 4  1 20 8  4   12-12
large-pod4-examples         128 20  65536  8  1 8192  7038       .006    .28  4096         3-7-7-7 5  1
large-pod4-examples         512 76  16384  2  1 8192  2137    .002828   .128  8192         3-7-7-7 5  1
large-pod4-examples         384  0    512  2  1  256     3     .00005     .1    64         3-7-7-7 4  1 20 2  4   12-12
# 65536 / 1.17 / 8 = 7001.7; 16384 / 2.0 / 2 = 4096
large-pod4-examples-packed  128 22  65536  8  1 7002  7038       .006    .28  4096         3-7-7-7 5  1
large-pod4-examples-packed  512 78  16384  2  1 4096  2137    .002828   .128  8192         3-7-7-7 5  1
large-pod4-examples-packed  384  0    512  2  1  256     3     .00005     .1    64         3-7-7-7 4  1 20 2  4   12-12
large-pod64-examples        128 20  65536  8 16  512  7038       .006    .28 32768         3-7-7-7 5  1
large-pod64-examples        512 76  16384  2 16  512  2137    .002828   .128 16384         3-7-7-7 5  1
large-pod64-examples        384  0    512  2  4   64     3     .00005     .1    64         3-7-7-7 4  1 20 8  4   12-12
large-pod64-examples-als    128 20  65536  8 16  512  7038       .006    .28     1         3-7-7-7 5  1
large-pod64-examples-als    512 76  16384  2 16  512  2137    .002828   .128 16384         3-7-7-7 5  1
large-pod64-examples-als    384  0    512  2  4   64     3     .00005     .1    64         3-7-7-7 4  1 20 8  4   12-12
# 65536 / 1.17 / 128 = 437.6; 16384 / 2.0 / 32 = 256
large-pod64-examples-packed 128 22  65536  8 16  438  7038       .006    .28 32768         3-7-7-7 5  1
large-pod64-examples-packed 512 78  16384  2 16  256  2137    .002828   .128 16384         3-7-7-7 5  1
large-pod64-examples-packed 384  0    512  2  4   64     3     .00005     .1    64         3-7-7-7 4  1 20 8  4   12-12
# graphcore/examples, TensorFlow 2
base-pod16-tf2-384          128 20  65280 32  4  510  7059       .006    .28  4096         0-4-4-4 5  1
base-pod16-tf2-384          384 56  16320  8  4  510  2098    .002828   .129  4096         0-4-4-4 5  1
base-pod16-tf2-384          384  0    320  4  4   20     3       .001     .3     1         0-4-4-4 5  1  4 4  5 0-4-4-4
base-pod16-tf2-512          128 20  65280 32  4  510  7059       .006    .28  4096         0-4-4-4 5  1
base-pod16-tf2-512          512 76  16320  8  4  510  2098    .002828   .129  4096         0-4-4-4 5  1
base-pod16-tf2-512          384  0    320  4  4   20     3       .001     .3     1         0-4-4-4 5  1  4 4  5 0-4-4-4
base-pod4-tf2-384           128 20  65280 32  1 2040  7059       .006    .28  4096         0-4-4-4 5  1
base-pod4-tf2-384           384 56  16320  8  1 2040  2098    .002828   .129  4096         0-4-4-4 5  1
base-pod4-tf2-384           384  0    320  4  1   80     3       .001     .3     1         0-4-4-4 5  1  4 1  5 0-4-4-4
base-pod4-tf2-512           128 20  65280 32  1 2040  7059       .006    .28  4096         0-4-4-4 5  1
base-pod4-tf2-512           512 76  16320  8  1 2040  2098    .002828   .129  4096         0-4-4-4 5  1
base-pod4-tf2-512           384  0    320  4  1   80     3       .001     .3     1         0-4-4-4 5  1  4 1  5 0-4-4-4
large-pod16-tf2-384         128 20  65280  8  4 2040  7059       .006    .28 32768         3-7-7-7 5  1
large-pod16-tf2-384         384 56  16320  2  4 2040  2098    .002828   .129 32768         3-7-7-7 5  1
large-pod16-tf2-384         384  0    320  2  4   40     3       .001     .3     1         3-7-7-7 5  1  2 4  5 3-7-7-7
large-pod16-tf2-512         128 20  65280  8  4 2040  7059       .006    .28 32768         3-7-7-7 5  1
large-pod16-tf2-512         512 76  16320  2  4 2040  2098    .002828   .129 32768         2-7-7-8 5  1
large-pod16-tf2-512         384  0    320  2  4   40     3       .001     .3     1         3-7-7-7 5  1  2 4  5 3-7-7-7
large-pod4-tf2-384          128 20  65280  8  1 8160  7059       .006    .28 32768         3-7-7-7 5  1
large-pod4-tf2-384          384 56  16320  2  1 8160  2098    .002828   .129 32768         3-7-7-7 5  1
large-pod4-tf2-384          384  0    320  2  1  160     3       .001     .3     1         3-7-7-7 5  1  2 1  5 3-7-7-7
large-pod4-tf2-512          128 20  65280  8  1 8160  7059       .006    .28 32768         3-7-7-7 5  1
large-pod4-tf2-512          512 76  16320  2  1 8160  2098    .002828   .129 32768         2-7-7-8 5  1
large-pod4-tf2-512          384  0    320  2  1  160     3       .001     .3     1         3-7-7-7 5  1  2 1  5 3-7-7-7
large-pod64-tf2-384         128 20 130560  8 16 1020  3529       .006    .28 32768         3-7-7-7 5  1
large-pod64-tf2-384         384 56  16320  2 16  510  2098    .002828   .129 32768         3-7-7-7 5  1
large-pod64-tf2-384         384  0    320  2  4   40     3       .001     .3     1         3-7-7-7 5  1  2 4  5 3-7-7-7
base-pod16-paddle           128 20  65536 32  4  512  7038       .006 .28417   512         0-4-4-4 5  1
base-pod16-paddle           384 56  16384  8  4  512  2137 .002828427 .12822   128         0-4-4-4 5  1
base-pod16-paddle           384  0    128  2  4   16     4    .000056 .07514   256             6-6 2  4  2 4  4     6-6
"""
"""A preset on IPUs, and the fields of Row in their order; of fine-tuning then those of `predict`."""


def read_table() -> dict[str, Recipe]:
    recipes: dict[str, Recipe] = {}
    for line in TABLE.strip().splitlines():
        preset, *words = line.split()
        if preset != "#":
            values: list[Any] = [tuple(map(int, word.split("-"))) if "-" in word else float(word) for word in words]
            recipe = recipes.setdefault(f"ipu-{preset}", Recipe())
            recipe.jobs.append(Row(*values[:13]))
            recipe.predict = tuple(values[13:])
    return recipes


RECIPES = read_table()


Phase = namedtuple("Phase", "row_length masks global_batch updates learning_rate warmup schedule", defaults=("linear",))
"""A phase of pre-training on a GPU or CPU."""
Squad = namedtuple(
    "Squad",
    "global_batch epochs learning_rate warmup weight_decay clip optimizer",
    defaults=(0.01, None, "adamw"),
)
"""Fine-tuning on windows of 384 tokens."""
OPTIMUM = (Phase(128, 32, 65536, 10500, 0.006, 0.28), Phase(512, 96, 16384, 2038, 0.002828, 0.128))
EXAMPLES = (Phase(128, 20, 65536, 7038, 0.006, 0.28), Phase(512, 76, 16384, 2137, 0.002828, 0.128))
EXAMPLES_PACKED = (Phase(128, 22, 65536, 7038, 0.006, 0.28), Phase(512, 78, 16384, 2137, 0.002828, 0.128))
TF2 = Phase(128, 20, 65280, 7059, 0.006, 0.28)
TF2_384, TF2_512 = Phase(384, 56, 16320, 2098, 0.002828, 0.129), Phase(512, 76, 16320, 2098, 0.002828, 0.129)
TF2_SQUAD = Squad(320, 3, 0.001, 0.3, optimizer="lamb")
PADDLE = (Phase(128, 20, 65536, 7038, 0.006, 0.28417), Phase(384, 56, 16384, 2137, 0.002828427, 0.12822))
PADDLE_SQUAD = Squad(128, 4, 5.6e-5, 0.07514, weight_decay=0.0)
POPXL = Phase(128, 20, 2048, 225000, 5.3e-4, 0.00625)
RUN_QA = Squad(12, 2, 3e-5, 0.0, weight_decay=0.0, clip=1.0)


TokenPhase = namedtuple(
    "TokenPhase",
    "row_length tokens batch micro_batch learning_rate warmup_tokens schedule theta first_batch growing_tokens",
    defaults=(None, 0),
)
"""A phase of a recipe that counts billions of tokens, in full batches of packed rows: the base of the global rotation,
where it changes, and the tokens in which the batch grows from the first."""
TOKENS: dict[str, tuple[tuple[TokenPhase, ...], float]] = {
    "modernbert-base": (
        (
            TokenPhase(1024, 1719, 4608, 96, 8e-4, 3, "constant", 1e4, 768, 50),
            TokenPhase(8192, 250, 576, 12, 3e-4, 0, "constant", 16e4),
            TokenPhase(8192, 50, 576, 12, 3e-4, 0, "1-sqrt", None),
        ),
        1e-5 / 8e-4,
    ),
    "modernbert-large": (
        (
            TokenPhase(1024, 900, 4928, 56, 5e-4, 2, "constant", 1e4, 448, 10),
            TokenPhase(1024, 800, 4928, 56, 5e-5, 0, "constant", None),
            TokenPhase(8192, 250, 616, 7, 5e-5, 0, "constant", 16e4),
            TokenPhase(8192, 50, 624, 6, 5e-5, 0, "1-sqrt", None),
        ),
        1e-6 / 5e-5,
    ),
    "modernbert-bioclinical": (
        (
            TokenPhase(8192, 160.453, 576, 12, 3e-4, 0, "constant", None),
            TokenPhase(8192, 8.247337, 576, 12, 3e-4, 0, "1-sqrt", None),
        ),
        1e-5 / 3e-4,
    ),
}
"""Phases, and the weight decay of AdamW: that of the source by its learning rate."""

PORTABLE: dict[str, tuple[tuple[Phase, Phase] | None, Squad]] = {
    "cuda-base-optimum": (OPTIMUM, Squad(128, 3, 7e-5, 0.1)),
    "cuda-large-optimum": (OPTIMUM, Squad(256, 2, 2e-4, 0.0, weight_decay=0.0)),
    "cuda-base-examples": (EXAMPLES, Squad(32, 3, 6e-5, 0.25)),
    "cuda-large-examples": (EXAMPLES, Squad(512, 3, 5e-5, 0.1)),
    "cuda-large-examples-packed": (EXAMPLES_PACKED, Squad(512, 3, 5e-5, 0.1)),
    "cuda-base-tf2-384": ((TF2, TF2_384), TF2_SQUAD),
    "cuda-base-tf2-512": ((TF2, TF2_512), TF2_SQUAD),
    "cuda-large-tf2-384": ((TF2, TF2_384), TF2_SQUAD),
    "cuda-large-tf2-512": ((TF2, TF2_512), TF2_SQUAD),
    "cuda-base-paddle": (PADDLE, PADDLE_SQUAD),
    "cpu-base-paddle": (PADDLE, PADDLE_SQUAD),
    "cuda-base-popxl": ((POPXL, Phase(512, 76, 8192, 6250, 5.3e-4, 0.00625)), Squad(128, 3, 6e-5, 0.1, clip=1.0)),
    "cuda-large-popxl": ((POPXL, Phase(512, 76, 2048, 6250, 5.3e-4, 0.00625)), Squad(128, 2, 6e-5, 0.1, clip=1.0)),
    # 8192 and 4096 sequences on each of 8 GPUs; SQuAD 4 on each
    "cuda-large-nvidia": (
        (
            Phase(128, 20, 65536, 7038, 0.006, 0.2843, "square_root"),
            Phase(512, 80, 32768, 1563, 0.004, 0.128, "square_root"),
        ),
        Squad(32, 2, 3e-5, 0.1, clip=1.0),
    ),
    "cuda-base-run-qa": (None, RUN_QA),
    "cpu-base-run-qa": (None, RUN_QA),
}
