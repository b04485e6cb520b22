"""Stands in for SGLang's CUDA kernels, which its CPU code paths import and never call."""

from typing import NoReturn, Protocol


class _Missing(Protocol):
    __name__: str

    def __call__(self, *args: object, **kwargs: object) -> NoReturn: ...


def __getattr__(name: str) -> _Missing:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} needs CUDA")

    missing.__name__ = name
    return missing
