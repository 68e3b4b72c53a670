"""Trials: several models trained on one budget and compared with intervals."""
