"""`python -m gfcompile.cli`: the same as `gfcompile`."""

from gfcompile.cli import run

run()
