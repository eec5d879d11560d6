"""One loop for all methods and tasks: plain PyTorch, with the optimiser step in sight."""
