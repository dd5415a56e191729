"""A server that counts lines and starts a thread for each: one that ends at once, or one that answers. With "busy" it has one that never ends."""

import ctypes
import select
import signal
import socket
import sys
import threading
import time

how, port = sys.argv[1], int(sys.argv[2])


def work():
    while True:
        time.sleep(0.01)


if how == "busy":
    threading.Thread(target=work, name="worker", daemon=True).start()
listener = socket.create_server(("127.0.0.1", port))
clients, count, stopped = {}, 0, []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
poll = select.poll()
poll.register(listener, select.POLLIN)


def answer(client):
    client.send(b"%d:\n" % count)


def thread_that_ends():
    # It executes none of Python: threads that wait for the interpreter's lock read the clock, and whether one has to wait depends on which is faster.
    libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
    if libc.pthread_create(ctypes.byref(thread), None, libc.getpid, None) or libc.pthread_join(thread, None):
        sys.exit("no thread can be started")


while not stopped:
    for fd, _ in poll.poll(500):
        if fd == listener.fileno():
            client, _ = listener.accept()
            clients[client.fileno()] = client
            poll.register(client, select.POLLIN)
            continue
        line = clients[fd].recv(100)
        if not line:
            poll.unregister(fd)
            clients.pop(fd).close()
            continue
        count += 1
        if line.startswith(b"other"):
            thread = threading.Thread(target=answer, args=(clients[fd],))
            thread.start()
            thread.join()
        else:
            thread_that_ends()
            answer(clients[fd])
