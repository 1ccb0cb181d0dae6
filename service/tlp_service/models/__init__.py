"""Networks, and their export to ONNX."""
