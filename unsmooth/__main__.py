"""`python -m unsmooth`, for torchrun and where the `unsmooth` script is not on the path."""

import sys

from unsmooth.cli.main import main

sys.exit(main())
