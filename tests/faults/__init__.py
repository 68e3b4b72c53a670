"""Tests of faults: files, terminals and processes that are damaged, foreign or hostile."""
