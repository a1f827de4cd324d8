"""Model folders with their tokenizers, of random weights and any head."""

from collections.abc import Sequence
from pathlib import Path

from ipu_model.core.files import sha256_of
from ipu_model.models.config import ModelConfig
from ipu_model.models.model_folder import ModelOrigin, write_model
from ipu_model.models.modeling import build_model, initialise
from tasks.vocabulary.fast_tokenizer import make_wordpiece
from tests.tasks.tiny_model import SPECIAL


def write_head_model(
    folder: Path, head: str, labels: Sequence[str], words: Sequence[str], positions: int = 64, types: int = 2
) -> Path:
    """A model of one layer that looks as the stage finetune leaves it, its tokenizer next to it."""
    folder.mkdir(parents=True)
    make_wordpiece((*SPECIAL, *words), lowercase=True).write(positions, folder)
    sizes = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "intermediate_size": 64, "initializer_range": 0.5}
    config = ModelConfig(len(SPECIAL) + len(words), type_vocab_size=types, max_positions=positions, **sizes)
    model = build_model(head, config, len(labels))
    initialise(model, config, seed=1)
    origin = ModelOrigin(sha256_of(folder / "tokenizer.json"), "finetune", head, 10, 1)
    write_model(folder, head, config, model.state_dict(), origin, labels)
    return folder
