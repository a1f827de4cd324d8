"""BERT on IPU: what the runtime `ipu_model.runtime.ipu` is made of. Nothing here imports poptorch; it is passed in."""
