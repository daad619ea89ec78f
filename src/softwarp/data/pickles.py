"""Lists of bytes and flags out of a pickle, without unpickling it: nothing is imported, called or executed.

insightface keeps verification pairs as a pickle, mostly written by Python 2. Unpickling a file runs whatever
it names. Here its opcodes are read as data: plain values are built, and of all that a pickle can name only
the few forms in which Python and NumPy write bytes, flags and arrays of bytes are understood. They are not
called either: `_MEANINGS` says what each stands for. Anything else is a ValueError.
"""

import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np

CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
GIVEN = (  # opcodes whose value stands in the file as it is
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
)
LENGTHS = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Mark:
    """Where a list or tuple begins."""


class _Named:
    """Something that the pickle names, and what it is told about it."""

    def __init__(self, name: str, *given: Any) -> None:
        self.name, self.given = name, given
        self.state: Any = None


def read_plain_pickle(content: bytes) -> Any:
    """Return the lists, tuples, bytes, text, numbers and flags of a pickle; a ValueError for anything else.

    Strings of Python 2 are bytes, arrays of bytes are bytes, NumPy's flags are Python's.

    >>> import pickle
    >>> read_plain_pickle(pickle.dumps([b"face", True, (1, "x")]))
    [b'face', True, (1, 'x')]
    """
    try:
        return _run(content)
    except UnicodeError:
        raise ValueError("the pickle is damaged: its text cannot be decoded") from None
    except (IndexError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"this is not a pickle, or it is damaged ({type(error).__name__})") from None


def _run(content: bytes) -> Any:
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for opcode, value, _ in pickletools.genops(content):
        name = opcode.name
        if name == "STOP":
            break
        if name in ("PROTO", "FRAME"):
            continue
        if name == "POP":
            stack.pop()
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if value is None else value] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[_as(int, value)])
        elif name in ("APPEND", "APPENDS"):
            added = [stack.pop()] if name == "APPEND" else _above_mark(stack)
            _as(list, stack[-1]).extend(added)
        elif name == "BUILD":
            state = stack.pop()
            _as(_Named, stack[-1]).state = state
        else:
            stack.append(_made(name, value, stack))
    if len(stack) != 1:
        raise ValueError("the pickle is damaged: it does not end with one value")
    return _plain(stack[0], {}, [len(content)])


def _made(name: str, value: Any, stack: list[Any]) -> Any:
    """Return the value that an opcode adds to the stack."""
    if name in CONSTANTS:
        return CONSTANTS[name]
    if name in GIVEN:
        if isinstance(value, bytearray):
            return bytes(value)
        return value.encode("latin-1") if name.endswith("STRING") else value
    if name in LENGTHS:
        length = LENGTHS[name]
        if length > len(stack):
            raise ValueError("the pickle is damaged: a tuple has too few values")
        return tuple(stack.pop() for _ in range(length))[::-1]
    if name == "MARK":
        return _Mark()
    if name == "EMPTY_LIST":
        return []
    if name in ("LIST", "TUPLE"):
        return _above_mark(stack) if name == "LIST" else tuple(_above_mark(stack))
    if name in ("GLOBAL", "STACK_GLOBAL"):
        if name == "STACK_GLOBAL":
            last = _as(str, stack.pop())
            value = f"{_as(str, stack.pop())} {last}"
        return _Named(_known(value))
    if name == "REDUCE":
        given = _as(tuple, stack.pop())
        return _Named(_as(_Named, stack.pop()).name, *given)
    raise ValueError(f"the pickle asks for {name}, which no list of images needs; it is refused")


def _above_mark(stack: list[Any]) -> list[Any]:
    found = []
    while not isinstance(value := stack.pop(), _Mark):
        found.append(value)
    return found[::-1]


def _as(kind: type[Any], value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(
            f"the pickle is damaged: {type(value).__name__} in place of {kind.__name__.strip('_')}"
        )
    return value


def _known(name: str) -> str:
    """Return what a pickle names, if it is one of those that are understood."""
    plain = name.replace("numpy._core.", "numpy.core.")
    if plain not in _MEANINGS:
        raise ValueError(f"the pickle names {name!r}, which no list of images needs; it is refused")
    return plain


def _plain(value: Any, done: dict[int, Any], room: list[int]) -> Any:
    """Return the value with everything that was named replaced by what it means.

    Args:
        done: what became of the values so far: one that occurs many times is made once.
        room: how many more bytes may be made; all must be in the file.
    """
    if not isinstance(value, list | tuple | _Named | _Mark):
        return value
    if id(value) not in done:
        done[id(value)] = _Mark  # stands for the value until that is known
        if isinstance(value, list | tuple):
            done[id(value)] = type(value)([_plain(each, done, room) for each in value])
        elif isinstance(value, _Named):
            given = [_plain(each, done, room) for each in value.given]
            made = _MEANINGS[value.name](given, _plain(value.state, done, room))
            room[0] -= len(made) if isinstance(made, bytes | list) else 0
            if room[0] < 0:
                raise ValueError("the pickle makes more bytes than it holds; it is refused")
            done[id(value)] = made
    if done[id(value)] is _Mark:
        raise ValueError("the pickle is damaged: a list holds itself, or does not end")
    return done[id(value)]


def _dtype(given: list[Any], state: Any) -> str:
    kind = given[0].decode("latin-1") if isinstance(given[0], bytes) else given[0]
    if kind not in ("b1", "u1", "i1", "|b1", "|u1", "|i1", "bool", "uint8"):
        raise ValueError(f"the pickle holds an array of {kind!r}; only bytes and flags are read")
    return str(kind)


def _scalar(given: list[Any], state: Any) -> bool | int:
    kind, content = given
    value = content[0]
    return bool(value) if "b" in kind else int(value)


def _array(given: list[Any], state: Any) -> bytes | list[bool]:
    _, shape, kind, _, content = _as(tuple, state)
    return _of_kind(shape, kind, content)


def _buffer(given: list[Any], state: Any) -> bytes | list[bool]:
    content, kind, shape, _ = given
    return _of_kind(shape, kind, content)


def _of_kind(shape: Any, kind: str, content: Any) -> bytes | list[bool]:
    values = np.frombuffer(_as(bytes, content), np.uint8)
    if len(_as(tuple, shape)) != 1 or shape[0] != len(values):
        raise ValueError(f"the pickle holds an array of shape {shape}; only rows are read")
    return [bool(value) for value in values] if "b" in kind else values.tobytes()


def _encoded(given: list[Any], state: Any) -> bytes:
    text, encoding = given
    if encoding != "latin1":
        raise ValueError(f"the pickle encodes text as {encoding!r}; only latin1 is read")
    return str(_as(str, text)).encode("latin-1")


def _no_bytes(given: list[Any], state: Any) -> bytes:
    if given:
        raise ValueError("the pickle makes bytes of something; it is refused")
    return b""


def _name_alone(given: list[Any], state: Any) -> None:
    return None


_MEANINGS: dict[str, Callable[[list[Any], Any], Any]] = {
    "_codecs encode": _encoded,  # bytes as Python 3 writes them for Python 2
    "__builtin__ bytes": _no_bytes,
    "numpy dtype": _dtype,
    "numpy ndarray": _name_alone,
    "numpy.core.multiarray scalar": _scalar,
    "numpy.core.multiarray _reconstruct": _array,
    "numpy.core.numeric _frombuffer": _buffer,
}
