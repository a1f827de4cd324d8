"""BERT on IPU: the parts of the runtime `ipu_model.runtimes.ipu`. No module imports poptorch; it is passed in."""
