"""`.pt2`: programs that torch.export.save wrote, read as data."""
