"""Commands of the command line, one file each. They only read arguments and print."""
