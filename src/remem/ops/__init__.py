"""Fused kernels, a folder for each: the plain PyTorch truth beside the kernels that must agree with it."""
