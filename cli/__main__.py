"""`python -m bough.cli`."""

import sys

from .main import main

sys.exit(main())
