"""Triton twins of the operations, for CUDA. Imported only where one is chosen."""
