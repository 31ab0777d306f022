"""Names and methods that are loaded at first use: a rank loads the code that it executes, and none that draws."""

import sys
from importlib import import_module
from types import MethodType, ModuleType


class _Lazy(ModuleType):
    """A package that loads a name from its module at the first use.

    The import system sets a module as an attribute of its package.  Where a name of the package
    is spelled like a module of it, as `cost.cost` is, that must not hide the name.
    """

    def __getattr__(self, name: str):
        home = self.__dict__["_home"]
        if name not in home:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(import_module(home[name], self.__name__), name)
        super().__setattr__(name, value)
        return value

    def __setattr__(self, name: str, value) -> None:
        if not (isinstance(value, ModuleType) and name in self._home):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self._home})

    def __reduce__(self):  # by name, as every module travels to the ranks
        return import_module, (self.__name__,)


def lazy(package: str, names: dict[str, str]) -> list[str]:
    """Make the names of a package load at their first use.  Returns them, for `__all__`.

    package: its `__name__`.  names: module, as import_module takes it -> the names it gives, between spaces.
    """
    module = sys.modules[package]
    module._home = {name: home for home, exported in names.items() for name in exported.split()}
    module.__class__ = _Lazy
    return sorted(module._home)


class Later:
    """A method that is a function of another module, loaded at the first use: `prove = Later(".proof", "prove")`."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __set_name__(self, owner: type, name: str) -> None:
        self.package = owner.__module__.rpartition(".")[0]

    def __get__(self, instance, owner: type):
        function = getattr(import_module(self.module, self.package), self.name)
        return function if instance is None else MethodType(function, instance)
