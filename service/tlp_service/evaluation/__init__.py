"""Evaluation of model versions: how well their scores rank measured candidates."""
