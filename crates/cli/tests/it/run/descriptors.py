"""A server that has descriptors of its own beside its clients', and tells what it finds there."""

import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import sys

port = int(sys.argv[1])
listener = socket.create_server(("127.0.0.1", port))
listener.setblocking(False)
# More than the library opens.
pairs = [socket.socketpair() for _ in range(40)]
datagrams = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
out, into = os.pipe()
again = os.dup(into)
counter = os.eventfd(3, os.EFD_NONBLOCK)
libc = ctypes.CDLL(None, use_errno=True)
timer = libc.timerfd_create(1, 0)
# It leads to nobody who is a client.
alien = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
alien.connect(("127.0.0.1", port))
# Among the library's, which it does not know.
os.dup2(counter, 199)
# Those that it is to have at every replica, but for its epoll instance, which has the lowest number that is free.
own = [int(name) for name in os.listdir("/proc/self/fd")]
own = [fd for fd in own if os.path.exists(f"/proc/self/fd/{fd}")]
own, early = [fd for fd in own if fd < 160], [fd for fd in own if fd >= 160]
late = []
opened = []
clients, unread = {}, {}
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
epoll = select.epoll()
epoll.register(listener, select.EPOLLIN)


def put(text):
    for number, (one, _) in enumerate(pairs):
        one.send(b"%s%d" % (text, number))
    datagrams[0].send(text)
    datagrams[0].send(b"second")
    os.write(into, text)
    os.write(again, b"again")
    os.eventfd_write(counter, 2)
    # That one it opens while it serves.
    if not late:
        late.extend(os.pipe())
    os.write(late[1], text)
    return b"put"


def take():
    found = [other.recv(64, socket.MSG_DONTWAIT) for _, other in pairs]
    found += [datagrams[1].recv(64, socket.MSG_DONTWAIT) for _ in range(2)]
    found += [os.read(out, 64), b"%d" % os.eventfd_read(counter), os.read(late[0], 64)]
    return b" ".join(found)


def open_some():
    opened.extend([*os.pipe(), *(end.detach() for end in socket.socketpair()), os.open("/dev/null", os.O_RDONLY), os.dup(out)])
    return b" ".join(b"%d" % fd for fd in opened)


def open_high():
    """What is opened when every number is taken that is lower than the library's."""
    while not opened or opened[-1] < 160:
        opened.append(os.dup(out))
    root = os.open("/", os.O_RDONLY)
    signals = libc.signalfd(-1, ctypes.byref((ctypes.c_ulong * 16)()), 0)
    found = [root, signals, os.open("dev/null", os.O_RDONLY, dir_fd=root)]
    opened.extend(found)
    return b" ".join(b"%d" % fd for fd in found)


def called(result):
    return b"%d" % result if result >= 0 else errno.errorcode[ctypes.get_errno()].encode()


def unshare():
    # CLONE_FILES
    return called(libc.unshare(0x400))


def start_thread():
    """One that is none of Python's, and sleeps."""
    return b"%d" % libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, ctypes.cast(libc.pause, ctypes.c_void_p), None)


def make_stream(fd):
    """Of a descriptor, as the C library has them."""
    libc.fdopen.restype = ctypes.c_void_p
    return b"made" if libc.fdopen(fd, b"r") else called(-1)


def close_them():
    while opened:
        os.close(opened.pop())
    return b"closed"


def wait_for_timer():
    # At once, and never again.
    libc.timerfd_settime(timer, 0, (ctypes.c_long * 4)(0, 0, 0, 1), None)
    return b"%d" % int.from_bytes(os.read(timer, 8), "little")


def told(call):
    try:
        return b"%d" % call()
    except OSError as error:
        return errno.errorcode[error.errno].encode()


def put_onto(number):
    return told(lambda: os.dup2(out, number)) + b" " + told(lambda: os.dup2(out, number, inheritable=False))


def close_one(number):
    os.close(number)
    return b"closed"


def close_each(first, last):
    """As servers do that close whatever there may be."""
    closed = []
    for fd in range(first, last + 1):
        try:
            os.close(fd)
            closed.append(fd)
        except OSError as error:
            assert error.errno == errno.EBADF
    forget(closed)
    return b"%d" % len(closed)


def close_range(first, last, flags):
    done = libc.close_range(ctypes.c_uint(first), ctypes.c_uint(last), flags)
    if done == 0 and flags & 4 == 0:
        forget(range(first, min(last, 65535) + 1))
    return b"closed" if done == 0 else errno.errorcode[ctypes.get_errno()].encode()


def close_from(first):
    libc.closefrom(first)
    forget(range(first, 65536))
    return b"closed"


def forget(closed):
    """They are closed, and their numbers are perhaps another client's by the time that their objects end."""
    for fd in [fd for fd in clients if fd in closed]:
        clients.pop(fd).detach()
    opened[:] = [fd for fd in opened if fd not in closed]


def copy_above(number):
    opened.append(fcntl.fcntl(out, fcntl.F_DUPFD, number))
    return b"%d" % opened[-1]


def tell_own():
    return b" ".join(b"%d" % fd for fd in sorted([*own, epoll.fileno(), *late]))


def tell_early():
    return b" ".join(b"%d" % fd for fd in early)


def answer(line, asks):
    words = line.split()
    if words[0] == b"put":
        return put(words[1])
    if words[0] in (b"each", b"range", b"from"):
        return {b"each": close_each, b"range": close_range, b"from": close_from}[words[0]](*map(int, words[1:]))
    if len(words) == 2:
        return {b"onto": put_onto, b"above": copy_above, b"drop": close_one}[words[0]](int(words[1]))
    if words[0] == b"self":
        return b"%d" % asks
    if words[0] == b"stream":
        return make_stream(asks)
    return {b"take": take, b"open": open_some, b"close": close_them, b"timer": wait_for_timer, b"alien": lambda: told(lambda: alien.send(b"x")), b"own": tell_own, b"early": tell_early, b"high": open_high, b"unshare": unshare, b"thread": start_thread}[words[0]]()


while not stopped:
    for fd, _ in epoll.poll(0.5):
        if fd == listener.fileno():
            client, _ = listener.accept()
            client.setblocking(False)
            clients[client.fileno()], unread[client.fileno()] = client, b""
            epoll.register(client, select.EPOLLIN)
            continue
        if fd not in clients:
            continue
        received = clients[fd].recv(4096)
        if not received:
            epoll.unregister(fd)
            clients.pop(fd).close()
            continue
        *lines, unread[fd] = (unread[fd] + received).split(b"\n")
        for line in lines:
            told_client = answer(line, fd) + b"\n"
            # It may have closed its own connection.
            if fd in clients:
                clients[fd].send(told_client)
# What it closes is its own.
for one, other in pairs:
    one.close()
    other.close()
