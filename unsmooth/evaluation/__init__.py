"""How good a model is: accuracy with intervals, robustness, and what it costs."""
