"""A server that holds SIGTERM back but while it waits, by `ppoll` or `pselect`: it tells how often it has come, and ends at the second time."""

import ctypes
import errno
import signal
import socket
import sys

how, port = sys.argv[1], int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
listener = socket.create_server(("127.0.0.1", port))
listener.setblocking(False)
clients, unread = {}, {}
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(True))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
# With room for all signals, and none of them.
NONE = (ctypes.c_ulong * 16)()


class Time(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class Polled(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


def call(fds, time):
    """What it returns, and those that are ready."""
    if how == "ppoll":
        polled = (Polled * len(fds))(*((fd, 1, 0) for fd in fds))
        return libc.ppoll(polled, len(fds), ctypes.byref(time), NONE), [one.fd for one in polled if one.revents & 1]
    reads = (ctypes.c_ulong * 16)()
    for fd in fds:
        reads[fd // 64] |= 1 << fd % 64
    result = libc.pselect(max(fds) + 1, reads, None, None, ctypes.byref(time), NONE)
    return result, [fd for fd in fds if reads[fd // 64] >> fd % 64 & 1]


def refuses(fds):
    for time in [Time(0, 1_000_000_000), Time(0, -1), Time(-1, 0)]:
        assert call(fds, time)[0] == -1 and ctypes.get_errno() == errno.EINVAL, f"{how} takes {time.seconds} s {time.nanoseconds} ns"


refuses([listener.fileno()])
while len(heard) < 2:
    fds = [listener.fileno(), *clients]
    result, ready = call(fds, Time(0, 200_000_000))
    assert signal.SIGTERM not in signal.sigpending(), f"{how} has not let SIGTERM come"
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == {signal.SIGTERM}, f"{how} has left another mask behind"
    if result < 0:
        assert ctypes.get_errno() == errno.EINTR and heard, f"{how}: {ctypes.get_errno()}"
        continue
    for fd in ready:
        if fd == listener.fileno():
            client, _ = listener.accept()
            client.setblocking(False)
            clients[client.fileno()], unread[client.fileno()] = client, b""
            continue
        received = clients[fd].recv(4096)
        if not received:
            clients.pop(fd).close()
            continue
        *lines, unread[fd] = (unread[fd] + received).split(b"\n")
        for line in lines:
            refuses(fds)
            clients[fd].send(b"%d:%s\n" % (len(heard), b"x" * int(line)))
