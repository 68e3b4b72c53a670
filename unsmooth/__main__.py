"""`python -m unsmooth` is the command line."""

import sys

from unsmooth.cli import main

sys.exit(main())
