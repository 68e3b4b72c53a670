"""`python -m unsmooth`, for torchrun and for machines where scripts are not on the path."""

import sys

from unsmooth.cli.main import main

sys.exit(main())
