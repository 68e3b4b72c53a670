"""Accuracy with intervals, robustness and cost of models."""
