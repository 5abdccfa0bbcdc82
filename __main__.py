"""`python -m bough`."""

import sys

from bough.cli.main import entry

sys.exit(entry())
