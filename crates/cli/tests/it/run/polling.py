"""A server that counts lines, and waits for its clients by `poll`, by `select`, or by `epoll`, and then by `poll` for room for its answers."""

import select
import signal
import socket
import sys

how, port = sys.argv[1], int(sys.argv[2])
listener = socket.create_server(("127.0.0.1", port))
listener.setblocking(False)
clients, unread, unsent, count = {}, {}, {}, 0
# Its own, of which it never hears: more than a replica opens.
pairs = [socket.socketpair() for _ in range(40)]
own = [one.fileno() for pair in pairs for one in pair]
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
poll = select.poll()
if how == "both":
    epoll = select.epoll()
    epoll.register(listener, select.EPOLLIN)


def wait():
    """The descriptors to be read, and those that have room."""
    if how == "both":
        return [fd for fd, _ in epoll.poll(0.5)], []
    reads, writes = [*own, listener.fileno(), *clients], [fd for fd in clients if unsent[fd]]
    if how == "select":
        readable, writable, _ = select.select(reads, writes, reads, 0.5)
        assert not {*own} & {*readable}
        return readable, writable
    for fd in reads:
        poll.register(fd, select.POLLIN | (select.POLLOUT if fd in writes else 0))
    ready = poll.poll(500)
    assert not {*own} & {*dict(ready)}
    return [fd for fd, event in ready if event & select.POLLIN], [fd for fd, event in ready if event & select.POLLOUT]


def end(fd):
    if how == "poll":
        poll.unregister(fd)
    clients.pop(fd).close()


while not stopped:
    readable, writable = wait()
    for fd in readable:
        if fd == listener.fileno():
            client, _ = listener.accept()
            client.setblocking(False)
            fd = client.fileno()
            clients[fd], unread[fd], unsent[fd] = client, b"", b""
            if how == "both":
                epoll.register(fd, select.EPOLLIN)
            continue
        received = clients[fd].recv(4096)
        if not received:
            end(fd)
            continue
        *lines, unread[fd] = (unread[fd] + received).split(b"\n")
        for line in lines:
            count += 1
            # As many bytes as it asks for, so that some have to wait for room; or as many as there are clients.
            unsent[fd] += b"%d:" % count + b"x" * (len(clients) if line == b"clients" else int(line)) + b"\n"
        writable.append(fd)
    for fd in writable:
        while fd in clients and unsent[fd]:
            room = select.poll()
            room.register(fd, select.POLLOUT)
            if how == "both":
                assert room.poll(), "a wait without an end has ended with nothing"
            try:
                unsent[fd] = unsent[fd][clients[fd].send(unsent[fd]) :]
            except BlockingIOError:
                if how != "both":
                    break
