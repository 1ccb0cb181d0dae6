"""From candidates to scores on ONNX Runtime."""
