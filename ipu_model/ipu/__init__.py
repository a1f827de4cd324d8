"""BERT on IPU: what the runtime `ipu_model.runtimes.ipu` is made of. Nothing here imports poptorch; it is passed in."""
