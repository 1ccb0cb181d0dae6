"""Networks, and their export to ONNX."""

from tlp_service.scratch import use_scratch_folder

# torch's optimizers and its exporter import the compiler, which makes a folder in /tmp and reads files there by name.
use_scratch_folder("TORCHINDUCTOR_CACHE_DIR")
