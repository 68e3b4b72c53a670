"""The theorems, propositions and lemmas of the five papers as functions, one file per paper.

Each function takes tensors (…, n, d) or plain numbers, computes in double precision and changes nothing. Its
docstring has the formula, the number it has in the paper and what it assumes. Where an assumption fails for real
attention or real hosts the docstring says so, and a test in `tests/test_theory_*.py` shows a counterexample.

J = 11ᵀ/n, DC[X] = JX, HC[X] = X − JX, as in `unsmooth.bands`. A is a row-stochastic map, P its scores before softmax.
"""
