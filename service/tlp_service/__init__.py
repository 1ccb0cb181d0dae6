"""The cost-model service: server, training, evaluation."""

import os

# ONNX Runtime reads this when it is imported. Turning telemetry off later still leaves a device id in the home folder
# and a look-up of the vendor's host, so every process, each child and whoever imports this package gets it here.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
