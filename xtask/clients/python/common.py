"""What the programs share: connections that hide no error, and the end of the time."""

import os
import sys
import time

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

PORT = int(sys.argv[1])
SECONDS = float(sys.argv[2])
END = time.monotonic() + SECONDS


class Once(redis.Connection):
    """A connection that is opened once. redis-py opens one that it finds closed anew, without a word."""

    opened = False

    def _connect(self):
        if self.opened:
            print("a connection has been closed", file=sys.stderr, flush=True)
            os._exit(1)
        self.opened = True
        return super()._connect()


def connect(**settings):
    """A client that sends nothing twice: what goes wrong is seen."""
    pool = redis.ConnectionPool(connection_class=Once, port=PORT, retry=Retry(NoBackoff(), 0))
    return redis.Redis(connection_pool=pool, **settings)


def goes_on():
    """Whether the time is not over yet."""
    return time.monotonic() < END
