"""Stores on one contract: in memory, SQLite, Redis."""
