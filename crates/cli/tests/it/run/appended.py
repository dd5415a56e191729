"""A server that appends to a file, and cuts off what a write has left half done, as servers do when a disk is full."""

import os
import resource
import select
import signal
import socket
import sys

path, port = sys.argv[1], int(sys.argv[2])
listener = socket.create_server(("127.0.0.1", port))
listener.setblocking(False)
file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
clients, unread = {}, {}
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
epoll = select.epoll()
epoll.register(listener, select.EPOLLIN)


def append(text):
    return b"%d" % os.write(file, text + b"\n")


def fill(room, cut):
    """Appends when there is only so much room, and cuts that off again."""
    before = os.fstat(file).st_size
    none = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (before + room, none[1]))
    try:
        told = b"%d" % os.write(file, b"what has no room" * 64)
    except OSError as error:
        told = os.strerror(error.errno).encode()
    resource.setrlimit(resource.RLIMIT_FSIZE, none)
    cut(before)
    return told


def answer(line):
    words = line.split()
    if words[0] == b"append":
        return append(words[1])
    cut = {b"descriptor": lambda size: os.ftruncate(file, size), b"path": lambda size: os.truncate(path, size)}
    return fill(int(words[1]), cut[words[2]])


while not stopped:
    for fd, _ in epoll.poll(0.5):
        if fd == listener.fileno():
            client, _ = listener.accept()
            client.setblocking(False)
            clients[client.fileno()], unread[client.fileno()] = client, b""
            epoll.register(client, select.EPOLLIN)
            continue
        received = clients[fd].recv(1 << 16)
        if not received:
            epoll.unregister(fd)
            clients.pop(fd).close()
            continue
        *lines, unread[fd] = (unread[fd] + received).split(b"\n")
        told = b"".join(answer(line) + b"\n" for line in lines)
        if told:
            clients[fd].send(told)
