"""Tasks that a model can be trained for, one package per task."""
