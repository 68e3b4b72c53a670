"""Training runs: the loop, checkpoints, run directories, processes and observers."""
