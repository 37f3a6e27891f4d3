"""Tuning: what a schedule template leaves open, decided by trials on the machine itself."""
