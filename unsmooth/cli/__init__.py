"""The command line: one file per command. Commands read arguments, call public functions and print."""
