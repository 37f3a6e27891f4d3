"""`python -m gfcompile.cli`: the same as `gfcompile`."""

import sys

from gfcompile.cli import main

sys.exit(main())
