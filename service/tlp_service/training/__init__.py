"""``tlp train``: from tuning records to a version of a model."""

from tlp_service.scratch import use_scratch_folder

# The optimizers and the exporter of torch import its compiler, which makes a folder in /tmp with a predictable name.
use_scratch_folder("TORCHINDUCTOR_CACHE_DIR")
