"""The cost-model service: server, training, evaluation."""

import os

# ONNX Runtime reads this variable when it is imported. If telemetry is turned off later, the import has
# already written a device id to the home folder and looked up the vendor's host. Set here, it holds for every
# process that imports this package, and for their children.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
