"""A subscriber to keyspace events: it hears each once and in order."""

import threading

from common import connect, goes_on

writer, subscriber = connect(single_connection_client=True), connect()
writer.config_set("notify-keyspace-events", "K$x")
events = subscriber.pubsub(ignore_subscribe_messages=True)
events.psubscribe("__keyspace@0__:events:*")
sent, failures = [0], []


def write():
    try:
        while goes_on():
            writer.set(f"events:{sent[0]}", "value", px=5_000)
            sent[0] += 1
    except BaseException as error:
        failures.append(repr(error))


# Subscribed before the first one is sent.
events.get_message(timeout=60)
thread = threading.Thread(target=write)
thread.start()
heard = expired = 0
while thread.is_alive() or heard < sent[0] or expired < sent[0]:
    message = events.get_message(timeout=1)
    if message is None:
        assert not failures, failures
        continue
    number = int(message["channel"].rsplit(b":", 1)[1])
    if message["data"] == b"set":
        assert number == heard, f"{number} was heard where {heard} is next"
        heard += 1
    else:
        assert message["data"] == b"expired", message
        expired += 1
thread.join()
assert not failures, failures
assert heard == expired == sent[0] > 0, (heard, expired, sent)
print(f"{heard} keys were set and have expired, and each was heard of once")
