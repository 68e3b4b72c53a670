"""What the server of child processes imports before it forks them.

Its objects are left out of garbage collection: the first one in a child would visit, and so copy, all of them.
"""

import atexit
import gc

gc.disable()

import tests.support.runs  # noqa: E402, F401

gc.freeze()
atexit.register(gc.unfreeze)  # else nanobind warns of leaks when the server ends
