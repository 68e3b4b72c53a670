"""The theorems, propositions and lemmas of the five papers as functions, one file per paper.

Each function takes tensors (…, n, d) or numbers and computes in double precision. Its docstring has the formula, its
number in the paper and its assumptions. If an assumption fails for real attention or real hosts, the docstring says so,
and a test in `tests/theory/` has a counterexample. Results marked "ours" are not in the papers.

J = 11ᵀ/n, DC[X] = JX, HC[X] = X − JX, as in `unsmooth.bands`. A is a row-stochastic map, P its scores before softmax.
"""
