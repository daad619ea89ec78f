"""A loss of one's own, named FILE.py:CLASS wherever a loss is named: found, checked, and known by its hash.

The file is run, as a script would be. The hash is of this file alone, so it should import nothing that lies
beside it. Reading a finished run does not run it: the recipe of a run has all settings written out.
"""

import hashlib
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from softwarp.losses.contract import check_declared
from softwarp.names import did_you_mean


def is_own(name: str) -> bool:
    """Return whether this names a file, not a loss in LOSSES.

    >>> is_own("my_loss.py:MyLoss"), is_own("arcface")
    (True, False)
    """
    return name.endswith(".py") or ".py:" in name


def loss_label(name: str) -> str:
    """Return what to call a loss in folders and tables: no path.

    >>> loss_label("/home/me/my_loss.py:MyLoss"), loss_label("arcface")
    ('my_loss-MyLoss', 'arcface')
    """
    path, _, found = name.rpartition(":")
    return f"{Path(path).stem}-{found}" if is_own(name) else name


def whole_name(name: str) -> str:
    """Return the name with the absolute path of its file; that of a loss in LOSSES as it is."""
    if not is_own(name):
        return name
    path, class_name = _parts(name)
    return f"{path}:{class_name}"


def code_of(name: str) -> str:
    """Return the SHA-256 of the file."""
    return hashlib.sha256(_source(name)).hexdigest()


def check_code(name: str, code: str | None) -> None:
    """Raise a ValueError if the file is no longer the one with this hash; None is that of any."""
    if code is not None and code_of(name) != code:
        raise ValueError(
            f"{_parts(name)[0]} has changed since the recipe was written (loss.code); restore it, or set "
            "loss.code=null to train with what it says now"
        )


def own_loss(name: str) -> type[nn.Module]:
    """Return the class in its file; a ValueError says what it lacks."""
    path, class_name = _parts(name)
    found = vars(_module(path, _source(name))).get(class_name)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ValueError(f"{path} has no loss {class_name}; {_instead(path, class_name, _source(name))}")
    check_declared(found, f"{class_name} in {path}")  # by the class itself, before there is an instance
    return found


def _parts(name: str) -> tuple[Path, str]:
    """The absolute path of the file, and the name of the class."""
    path, _, class_name = name.rpartition(":") if not name.endswith(".py") else (name, "", "")
    if not class_name.isidentifier():
        raise ValueError(f"{name} names no class; write {path}:CLASS")
    return Path(path).expanduser().absolute(), class_name


def _source(name: str) -> bytes:
    path, _ = _parts(name)
    if not path.is_file():
        raise ValueError(
            f"there is no file {path}, which should hold a loss; give its path, like my_loss.py:MyLoss"
        )
    return path.read_bytes()


@cache
def _module(path: Path, source: bytes) -> ModuleType:
    """The file, run once; a file that has changed is run again."""
    module = ModuleType(f"softwarp_own_file_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses and pickles look a class up
    try:
        exec(compile(source, path, "exec"), vars(module))
    except Exception as error:
        raise ValueError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    return module


def _instead(path: Path, wanted: str, source: bytes) -> str:
    """Which class may have been meant."""
    there: dict[str, Any] = vars(_module(path, source))
    losses = [key for key, each in there.items() if isinstance(each, type) and hasattr(each, "card")]
    return did_you_mean(wanted, losses, f"its losses are {', '.join(losses) or 'none'}")
