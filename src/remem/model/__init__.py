"""The paper: every equation is one function, found by its number."""
