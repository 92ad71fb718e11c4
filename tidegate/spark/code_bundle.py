"""The user's modules, on their way to the workers.

What stands beside the user's script is sent along as source text and imported from memory in the workers: no temporary
files, nothing to clean up, and `from jobs import X` works without `add_python_file`, on a laptop and on a cluster.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any

from tidegate.common.errors import ConfigurationError

_MAX_FILES = 2000
_MAX_BYTES = 32 << 20
_MAX_DEPTH = 6
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"}


@dataclass(frozen=True)
class CodeBundle:
    """Module name -> (source text, file name on the driver, whether it is a package), and the driver's search path."""

    modules: dict[str, tuple[str, str, bool]] = field(default_factory=dict)
    paths: tuple[
        str, ...
    ] = ()  # directories on the driver's sys.path; used where they exist (local mode, shared disks)

    packages: tuple[str, ...] = ()  # folders of installed packages, which win over what the worker has installed
    archives: tuple[str, ...] = ()  # the same, by the names under which Spark has unpacked them

    @staticmethod
    def collect(python_files: Sequence[str]) -> CodeBundle:
        """Everything beside the main script, then `add_python_file` arguments (which win)."""
        modules: dict[str, tuple[str, str, bool]] = {}
        script = _main_script()
        if script is not None:
            modules.update(_walk(os.path.dirname(script), skip=script))
        for path in python_files:
            modules.update(_from_file(path))
        return CodeBundle(modules, tuple(_user_paths()))


def _main_script() -> str | None:
    """The path of the running script; None in a notebook, a shell, or a tool such as pytest."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None or not path.endswith(".py") or not os.path.exists(path):
        return None
    path = os.path.abspath(path)
    return None if _is_installed(path) else path


def _is_installed(path: str) -> bool:
    return any(path.startswith(p + os.sep) for p in {sys.prefix, sys.base_prefix}) or "site-packages" in path


def _user_paths() -> Iterator[str]:
    for entry in sys.path:
        path = os.path.abspath(entry or os.getcwd())
        if os.path.isdir(path) and not _is_installed(path):
            yield path


def _walk(root: str, skip: str = "", prefix: str = "") -> dict[str, tuple[str, str, bool]]:
    found: dict[str, tuple[str, str, bool]] = {}
    size = 0
    for folder, folders, files in os.walk(root):
        depth = os.path.relpath(folder, root).count(os.sep)
        folders[:] = sorted(
            f
            for f in folders
            if f.isidentifier() and f not in _SKIPPED and not os.path.exists(os.path.join(folder, f, "pyvenv.cfg"))
        )
        if depth >= _MAX_DEPTH:
            folders.clear()
        package = os.path.relpath(folder, root).replace(os.sep, ".")
        package = prefix if package == "." else f"{prefix}.{package}" if prefix else package
        for name in sorted(f for f in files if f.endswith(".py")):
            path = os.path.join(folder, name)
            if path == skip:
                continue
            is_package = name == "__init__.py"
            module = package if is_package else f"{package}.{name[:-3]}" if package else name[:-3]
            if not module:
                continue
            try:
                source = importlib.util.decode_source(_read(path))
            except (OSError, SyntaxError, UnicodeDecodeError):
                continue  # not importable on the driver either
            size += len(source)
            if len(found) >= _MAX_FILES or size > _MAX_BYTES:
                return {n: m for n, m in found.items() if n in sys.modules}  # a huge folder: only what is in use
            found[module] = (source, path, is_package)
    return found


def _from_file(path: str) -> dict[str, tuple[str, str, bool]]:
    if os.path.isdir(path):
        name = os.path.basename(os.path.abspath(path))
        if os.path.exists(os.path.join(path, "__init__.py")):
            return _walk(path, prefix=name)
        return _walk(path)
    if not os.path.exists(path):
        raise ConfigurationError(f"add_python_file: '{path}' does not exist")
    if path.endswith(".py"):
        return {os.path.basename(path)[:-3]: (importlib.util.decode_source(_read(path)), os.path.abspath(path), False)}
    if zipfile.is_zipfile(path):
        found = {}
        with zipfile.ZipFile(path) as archive:
            for entry in archive.namelist():
                if entry.endswith(".py"):
                    is_package = os.path.basename(entry) == "__init__.py"
                    dotted = entry[: -len("/__init__.py")] if is_package else entry[:-3]
                    source = importlib.util.decode_source(archive.read(entry))
                    found[dotted.replace("/", ".")] = (source, f"{path}/{entry}", is_package)
        return found
    raise ConfigurationError(f"add_python_file: '{path}' is neither a .py file, a folder, nor a zip or egg of modules")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


# ---------------------------------------------------------------- in the worker


class BundleFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports modules from a bundle. Comes last on the meta path: what is installed wins over what was sent along."""

    def __init__(self, bundle: CodeBundle) -> None:
        self.bundle = bundle
        # A folder without __init__.py is a namespace package: every prefix of a module's name can be imported.
        self._namespaces = {
            ".".join(parts[:i]) for name in bundle.modules for parts in [name.split(".")] for i in range(1, len(parts))
        } - bundle.modules.keys()

    def find_spec(
        self, fullname: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in self.bundle.modules:
            _, file, is_package = self.bundle.modules[fullname]
            spec = importlib.machinery.ModuleSpec(fullname, self, origin=file, is_package=is_package)
            spec.has_location = True
            return spec
        if fullname in self._namespaces:
            return importlib.machinery.ModuleSpec(fullname, None, is_package=True)
        return None

    def get_source(self, fullname: str) -> str:
        return self.bundle.modules[fullname][0]

    def is_package(self, fullname: str) -> bool:
        return self.bundle.modules[fullname][2]

    def get_code(self, fullname: str) -> CodeType:
        source, file, _ = self.bundle.modules[fullname]
        return compile(source, file, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        exec(self.get_code(module.__name__), module.__dict__)


_installed = CodeBundle()  # what this process imports from
_added: list[str] = []  # by it, to sys.path


def install(bundle: CodeBundle) -> None:
    """Make a bundle importable in this process, in place of the bundle of an earlier job (Spark reuses workers)."""
    global _installed
    if bundle == _installed:
        return
    _remove_installed()
    _installed = bundle
    packages = _new_folders([*bundle.packages, *_unpacked(bundle.archives)])
    sys.path[:0] = packages
    paths = _new_folders(bundle.paths)
    sys.path += paths
    _added.extend(packages + paths)
    if bundle.modules:
        sys.meta_path.append(BundleFinder(bundle))
    if _added or bundle.modules:  # it reads the directory of Spark's own zip anew each time, which takes 0.1 s
        importlib.invalidate_caches()


def _remove_installed() -> None:
    """With all modules that came from it: another job may have others of the same names."""
    for finder in [f for f in sys.meta_path if isinstance(f, BundleFinder)]:
        sys.meta_path.remove(finder)
        for name in finder.bundle.modules:
            sys.modules.pop(name, None)
    if not _added:
        return
    sys.path[:] = [path for path in sys.path if path not in _added]
    folders = tuple(os.path.join(path, "") for path in _added)
    _added.clear()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "tidegate" and _origin(module).startswith(folders):  # it may be there, in a clone
            del sys.modules[name]


def _origin(module: ModuleType) -> str:
    """Its file, or the first folder of a namespace package."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        file = next(iter(getattr(module, "__path__", ())), "")
    return file if isinstance(file, str) else ""


def _new_folders(paths: Sequence[str]) -> list[str]:
    return [path for path in dict.fromkeys(paths) if path not in sys.path and os.path.isdir(path)]


def _unpacked(archives: tuple[str, ...]) -> list[str]:
    if not archives:
        return []
    from pyspark import SparkFiles

    return [SparkFiles.get(name) for name in archives]


def adopt_main_classes() -> None:
    """Classes of the user's script live in its `__main__`. Cloudpickle has rebuilt them here; make them findable there,
    so that plain pickle, which is much faster, works for records and state made of them."""
    import cloudpickle.cloudpickle as internals

    main = sys.modules["__main__"]
    for cls in list(getattr(internals, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", {})):
        if cls.__module__ == "__main__" and cls.__qualname__.isidentifier():
            existing = getattr(main, cls.__qualname__, None)
            if existing is None or isinstance(existing, type):
                setattr(main, cls.__qualname__, cls)
