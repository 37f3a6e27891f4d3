"""One hypothesis profile for all tests: the same draws on every run, no deadline on a shared machine."""

from hypothesis import settings

settings.register_profile("gfcompile", derandomize=True, deadline=None, database=None, print_blob=True)
settings.load_profile("gfcompile")
