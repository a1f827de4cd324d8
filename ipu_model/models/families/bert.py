"""BERT (arXiv 1810.04805): the family whose names Podium uses."""

from ipu_model.models.family import Family

FAMILY = Family("bert", "BERT", "Bert", "bert", names=())
