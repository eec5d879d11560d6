"""Presets, records and tables: one command makes one row."""
