"""RQ: workers as its users run them, each of which forks a process for each job, and a program that gives them jobs and waits for what comes of them."""

import logging
import multiprocessing
import sys
import time

from rq import Queue, Worker
from rq.job import JobStatus

from common import connect, goes_on
from tasks import count

WORKERS = 2
# Jobs that are under way at once.
AHEAD = 6
# Seconds without a job after which a worker ends. One that is told to end gives up its connections in the midst of a request.
IDLE = 10


class Complaints(logging.Handler):
    """A worker that cannot reach the server complains and goes on; here that counts."""

    heard = 0

    def emit(self, record):
        if record.levelno >= logging.WARNING:
            print(f"a worker: {self.format(record)}", file=sys.stderr, flush=True)
            Complaints.heard += 1


def work(name):
    logging.getLogger("rq.worker").addHandler(Complaints())
    Worker([Queue("jobs", connection=connect())], name=name, connection=connect()).work(logging_level="WARNING", max_idle_time=IDLE)
    raise SystemExit(1 if Complaints.heard else 0)


def give(queue, workers):
    """Gives jobs until the time is over, and waits for what comes of each. Returns how many there were."""
    given, under_way = 0, []
    while goes_on() or under_way:
        while goes_on() and len(under_way) < AHEAD:
            under_way.append((given, queue.enqueue(count, given)))
            given += 1
        for number, job in list(under_way):
            status = job.get_status()
            assert status != JobStatus.FAILED, job.latest_result().exc_string
            if status == JobStatus.FINISHED:
                assert job.return_value() == 1, f"job {number} was executed {job.return_value()} times"
                under_way.remove((number, job))
        assert all(worker.is_alive() for worker in workers), "a worker has ended"
        time.sleep(0.01)
    return given


if __name__ == "__main__":
    client = connect()
    queue = Queue("jobs", connection=client)
    workers = [multiprocessing.Process(target=work, args=[f"worker-{number}"]) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    try:
        given = give(queue, workers)
    except BaseException:
        # They would wait for jobs for ever.
        for worker in workers:
            worker.kill()
        raise
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0, f"a worker has complained or ended with {worker.exitcode}"
    assert queue.failed_job_registry.count == 0 and len(queue) == 0
    counts = client.mget([f"jobs:done:{number}" for number in range(given)])
    assert given > 0 and set(counts) == {b"1"}, counts
    print(f"{given} jobs were executed, each once, by {WORKERS} workers")
