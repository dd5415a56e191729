"""redis-py's Lock: threads that count under it, each with a connection of its own."""

import threading

from common import connect, goes_on

THREADS = 4
inside = []
held = [0] * THREADS
failures = []


def work(number):
    client = connect(single_connection_client=True)
    try:
        while goes_on():
            with client.lock("locks:lock", timeout=30, sleep=0.005) as lock:
                inside.append(number)
                assert inside == [number], f"{inside} hold the lock at once"
                count = int(client.get("locks:count") or 0)
                # Another holder would write the same.
                client.set("locks:count", count + 1)
                assert lock.extend(5), "the lock is not ours any more"
                assert lock.owned()
                inside.remove(number)
            held[number] += 1
    except BaseException as error:
        failures.append(repr(error))


threads = [threading.Thread(target=work, args=[number]) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
count = int(connect().get("locks:count"))
assert count == sum(held) > 0, f"the lock was held {sum(held)} times, and {count} were counted"
print(f"the lock was held {count} times, by one at a time")
