"""Runs networks on ONNX Runtime: what a network reads of candidates, and the work that scores them."""
