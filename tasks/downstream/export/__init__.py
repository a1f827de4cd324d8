"""Export a finished model to ONNX, answer with the exported files, and measure them."""
