"""One schema of settings: the command line, the Python signatures, plan.toml and the reference table are made of it."""
