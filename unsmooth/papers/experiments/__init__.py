"""The parts of each paper as data: PAPER/paper.toml, and PAPER/PART.toml for each table, figure or theorem."""
