"""RoBERTa (arXiv 1907.11692): BERT without token types and without next sentence prediction."""

from ipu_model.models.family import Family

FAMILY = Family(
    "roberta",
    "RoBERTa",
    "Roberta",
    "roberta",
    names=(
        ("bert.embeddings.", "roberta.embeddings."),
        ("bert.encoder.", "roberta.encoder."),
        ("cls.predictions.transform.dense.", "lm_head.dense."),
        ("cls.predictions.transform.LayerNorm.", "lm_head.layer_norm."),
        ("cls.predictions.", "lm_head."),
    ),
    class_names=(("classifier.", "classifier.out_proj."), ("bert.pooler.dense.", "classifier.dense.")),
    defaults={"pad_id": 1},
    offset_positions=True,
    pair_types=1,
    pools_in_head=True,
    drops_first=True,
)
