"""The cost-model service: server, training, evaluation."""
