"""Triton kernels on CPU tensors, by Triton's own interpreter: for machines without a GPU."""

import os

import torch


def interpret() -> bool:
    """Whether kernels imported from now on are interpreted: only where there is no GPU."""
    if torch.cuda.is_available():
        return False
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel's module is imported
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))  # NumPy 2.4 refuses int() of an array of one

    if patch.__name__ != patched.__name__:
        interpreter._patch_lang_tensor = patched
    return True
