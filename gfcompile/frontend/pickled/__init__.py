"""`.pt` and `.pth`: pickled modules, read without running what is in the file."""
