"""The experiments of each paper as data: PAPER/paper.toml, and PAPER/NAME.toml for each table, figure or theorem."""
