"""Polls a listener as a program does, and as one that is built to be checked at runtime. For a process that a server's library is loaded into."""

import ctypes
import errno
import os
import socket

libc = ctypes.CDLL(None, use_errno=True)
listener = socket.create_server(("127.0.0.1", 0))


class Polled(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


polled, none = (Polled * 1)((listener.fileno(), 1, 0)), (ctypes.c_long * 2)(0, 0)
calls = {
    "ppoll": lambda: libc.ppoll(polled, 1, none, None),
    "__ppoll_chk": lambda: libc.__ppoll_chk(polled, 1, none, None, ctypes.c_size_t(8)),
    "poll": lambda: libc.poll(polled, 1, 0),
    "__poll_chk": lambda: libc.__poll_chk(polled, 1, 0, ctypes.c_size_t(8)),
}


def name(result):
    return errno.errorcode[ctypes.get_errno()] if result < 0 else str(result)


print(", ".join(f"{name_of} {name(call())}" for name_of, call in calls.items()), flush=True)
os._exit(0)
