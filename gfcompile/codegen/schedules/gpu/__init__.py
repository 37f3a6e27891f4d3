"""Templates for GPUs: every loop nest under a function's root becomes one kernel."""
