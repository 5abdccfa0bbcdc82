"""`python -m bough.cli`."""

import sys

from .main import entry

sys.exit(entry())
