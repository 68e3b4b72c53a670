"""What a run can learn besides classification: one package for each task."""
