"""`remem bench service`: load on a real server, and what it would cost to read the raw history again instead."""
