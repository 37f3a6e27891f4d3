"""A pickle machine whose every instruction is limited, not only the names it may look up.

It extends pickle's Python implementation because the C one cannot be told what an instruction may do: a permitted class
called with chosen arguments, or state set on a function, would run or change code.
"""

from __future__ import annotations

import collections
import functools
import io
import pickle
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar, NoReturn

from torch import nn

from gfcompile.frontend.foreign import MalformedError, refuse_without_trust
from gfcompile.frontend.pickled.builders import (
    Builder,
    ModuleClass,
    Storage,
    StorageKind,
    check_attributes,
    check_key,
    set_partial,
)
from gfcompile.frontend.pickled.names import Names, name_of

# What torch.save writes, in protocols 2 to 5
_INSTRUCTIONS = b"".join((
    pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK,
    pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1,
    pickle.LONG4, pickle.BINFLOAT, pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8,
    pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8,
    pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.EMPTY_LIST, pickle.APPEND,
    pickle.APPENDS, pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS, pickle.EMPTY_SET, pickle.ADDITEMS,
    pickle.FROZENSET, pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.NEWOBJ, pickle.BUILD, pickle.BINPERSID,
    pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET, pickle.MEMOIZE,
))  # fmt: skip


_LARGEST_NUMBER = 1 << 127  # the mark of torch's old format has 77 bits
_MOST_DELICATE = 1000  # containers that Python frees by recursion: one in another, many times, would end the process


class RestrictedUnpickler(pickle._Unpickler):
    """Builds tensors, plain containers and modules; `fetch` gives the bytes of a storage by its key and size."""

    stack: list[Any]  # pickle's own
    metastack: list[list[Any]]

    def __init__(self, file: io.BytesIO, path: str, names: Names, fetch: Callable[[str, int], bytearray]) -> None:
        super().__init__(file)
        self._path, self._names, self._fetch = path, names, fetch
        self._storages: dict[str, Storage] = {}
        self._delicate = 0
        self.made: list[nn.Module] = []

    def find_class(self, module_name: str, name: str) -> Any:
        return self._names.find(module_name, name)

    def persistent_load(self, pid: Any) -> Any:
        """A storage; or, in torch's old format, a module class, which comes with its source."""
        if type(pid) is not tuple or not pid:
            raise MalformedError("it refers to something that is neither a storage nor a class")
        if pid[0] == "module" and len(pid) == 4 and isinstance(pid[1], ModuleClass):
            return pid[1]
        if pid[0] != "storage" or len(pid) not in (5, 6) or not isinstance(pid[1], StorageKind) or any(pid[5:]):
            raise MalformedError("it refers to something that is neither a storage nor a class")
        kind, key, count = pid[1], pid[2], pid[4]
        if type(key) is not str or type(count) is not int or count < 0:
            raise MalformedError("it refers to a storage of no size")
        if key not in self._storages:
            self._storages[key] = Storage(self._fetch(key, count * kind.dtype.itemsize), kind.dtype)
        return self._storages[key]

    def _refuse(self, deed: str) -> NoReturn:
        refuse_without_trust(self._path, deed)

    def load_long1(self) -> None:
        super().load_long1()  # type: ignore[misc]
        self._check_number()

    def load_long4(self) -> None:
        super().load_long4()  # type: ignore[misc]
        self._check_number()

    def _check_number(self) -> None:
        """Arithmetic with a number of thousands of digits takes minutes."""
        if abs(self.stack[-1]) > _LARGEST_NUMBER:
            raise MalformedError("it holds a number that is too large")

    def load_reduce(self) -> None:
        called, arguments = self.stack[-2:]
        is_enum = isinstance(called, type) and issubclass(called, Enum)
        if type(arguments) is not tuple or not (isinstance(called, Builder) or is_enum):
            self._refuse(f"calls '{name_of(called)}' while it loads")
        if is_enum:
            if len(arguments) != 1 or type(arguments[0]) not in (str, int):
                self._refuse(f"calls '{name_of(called)}' while it loads")
            self.stack[-2:] = [called(arguments[0])]
        else:
            made = called(arguments)
            self._delicate += isinstance(made, collections.defaultdict | collections.deque)
            if self._delicate > _MOST_DELICATE:
                raise MalformedError("it holds too many containers of a rare kind")
            self.stack[-2:] = [made]

    def load_newobj(self) -> None:
        made, arguments = self.stack[-2:]
        if not isinstance(made, ModuleClass) or arguments != ():
            self._refuse(f"makes '{name_of(made)}' with arguments of its own")
        module = object.__new__(made.kind)
        self.made.append(module)
        self.stack[-2:] = [module]

    def load_build(self) -> None:
        """Set a state; that of modules is checked when all of it is there."""
        state, built = self.stack.pop(), self.stack[-1]
        if isinstance(built, nn.Module):
            if type(state) is not dict:
                raise MalformedError(f"the state of a '{name_of(built)}' is no dictionary")
            vars(built).update(state)
        elif type(built) is functools.partial:
            set_partial(built, state)
        elif type(built) is collections.OrderedDict:
            vars(built).update(check_attributes(state, collections.OrderedDict))
        else:
            self._refuse(f"sets the state of '{name_of(built)}'")

    # the append or __setitem__ of any other object would be a call of the file's choice

    def load_append(self) -> None:
        self._fill(self.stack[-2], (list, collections.deque))
        super().load_append()  # type: ignore[misc]

    def load_appends(self) -> None:
        self._fill(self.metastack[-1][-1], (list, collections.deque))
        super().load_appends()  # type: ignore[misc]

    def load_setitem(self) -> None:
        self._fill(self.stack[-3], (dict,), self.stack[-2:-1])
        super().load_setitem()  # type: ignore[misc]

    def load_setitems(self) -> None:
        self._fill(self.metastack[-1][-1], (dict,), self.stack[::2])
        super().load_setitems()  # type: ignore[misc]

    def load_additems(self) -> None:
        self._fill(self.metastack[-1][-1], (set,), self.stack)
        super().load_additems()  # type: ignore[misc]

    def load_frozenset(self) -> None:
        self._fill(set(), (set,), self.stack)
        super().load_frozenset()  # type: ignore[misc]

    def _fill(self, container: object, kinds: tuple[type, ...], keys: list[Any] | tuple[Any, ...] = ()) -> None:
        if not isinstance(container, kinds):
            self._refuse(f"fills '{name_of(container)}'")
        for key in keys:
            check_key(key)

    def _refuse_instruction(self) -> None:
        self._refuse("uses a pickle instruction that torch.save never writes")

    dispatch: ClassVar[dict[int, Any]] = {
        **dict.fromkeys(range(256), _refuse_instruction),
        **{code: pickle._Unpickler.dispatch[code] for code in _INSTRUCTIONS},
        pickle.LONG1[0]: load_long1,
        pickle.LONG4[0]: load_long4,
        pickle.REDUCE[0]: load_reduce,
        pickle.NEWOBJ[0]: load_newobj,
        pickle.BUILD[0]: load_build,
        pickle.APPEND[0]: load_append,
        pickle.APPENDS[0]: load_appends,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.ADDITEMS[0]: load_additems,
        pickle.FROZENSET[0]: load_frozenset,
    }
