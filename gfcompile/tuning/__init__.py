"""Tuning: which choices of our schedule templates are fastest on a machine, found by trials and kept in a database."""
