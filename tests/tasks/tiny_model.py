"""A question-answering model folder of a few thousand random weights, with its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
HIDDEN, LAYERS, INTERMEDIATE, POSITIONS = 16, 2, 32, 512


def write_tokenizer(folder: Path, vocabulary: list[str], model_max_length: int = 512) -> Path:
    """tokenizer.json and tokenizer_config.json as BertTokenizerFast of any transformers reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = {token: i for i, token in enumerate([*SPECIAL, *vocabulary])}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": model_max_length}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_tiny_model(folder: Path, vocabulary: list[str], seed: int = 0) -> Path:
    """config.json and model.safetensors under Hugging Face's names, and the tokenizer.

    The weights are large enough for logits that differ from token to token.
    """
    write_tokenizer(folder, vocabulary)
    size = len(SPECIAL) + len(vocabulary)
    generator = np.random.default_rng(seed)
    shapes = {
        "bert.embeddings.word_embeddings.weight": (size, HIDDEN),
        "bert.embeddings.position_embeddings.weight": (POSITIONS, HIDDEN),
        "bert.embeddings.token_type_embeddings.weight": (2, HIDDEN),
        "qa_outputs.weight": (2, HIDDEN),
        "qa_outputs.bias": (2,),
    }
    for layer in range(LAYERS):
        at = f"bert.encoder.layer.{layer}."
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            shapes |= {f"{at}{name}.weight": (HIDDEN, HIDDEN), f"{at}{name}.bias": (HIDDEN,)}
        shapes |= {f"{at}intermediate.dense.weight": (INTERMEDIATE, HIDDEN)}
        shapes |= {f"{at}intermediate.dense.bias": (INTERMEDIATE,)}
        shapes |= {f"{at}output.dense.weight": (HIDDEN, INTERMEDIATE), f"{at}output.dense.bias": (HIDDEN,)}
    weights = {name: generator.normal(scale=0.7, size=shape) for name, shape in shapes.items()}
    outputs = [f"encoder.layer.{i}.{part}output" for i in range(LAYERS) for part in ("attention.", "")]
    for place in ["embeddings", *outputs]:
        weights[f"bert.{place}.LayerNorm.weight"] = np.ones(HIDDEN)
        weights[f"bert.{place}.LayerNorm.bias"] = np.zeros(HIDDEN)
    save_file({n: w.astype(np.float32) for n, w in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["BertForQuestionAnswering"],
        "model_type": "bert",
        "vocab_size": size,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "layer_norm_eps": 1e-12,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
