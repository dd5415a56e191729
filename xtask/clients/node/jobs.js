// BullMQ: a queue, a worker of four jobs at once, and what comes of each job awaited by its events. Some jobs are delayed, and some fail at first and are tried again.

import { Queue, QueueEvents, Worker } from "bullmq";
import Redis from "ioredis";

const [port, seconds] = process.argv.slice(2).map(Number);
const end = Date.now() + seconds * 1000;
const AHEAD = 8;
let over = false;

function fail(why) {
  console.error(why);
  process.exit(1);
}

// A connection that is never opened anew: ioredis would do that without a word.
function connect() {
  const client = new Redis({ port, maxRetriesPerRequest: null, retryStrategy: () => null });
  client.on("error", (error) => fail(`a connection: ${error}`));
  client.on("close", () => over || fail("a connection has been closed"));
  return client;
}

const clients = [connect(), connect(), connect()];
const [own, ofEvents, ofWorker] = clients;
const queue = new Queue("jobs", { connection: own });
const events = new QueueEvents("jobs", { connection: ofEvents });
const executed = new Map();

const worker = new Worker(
  "jobs",
  async (job) => {
    const times = (executed.get(job.data.number) ?? 0) + 1;
    executed.set(job.data.number, times);
    if (job.data.number % 10 === 0 && times === 1) {
      throw new Error("at first it fails");
    }
    await job.updateProgress(50);
    return job.data.number * 2;
  },
  { connection: ofWorker, concurrency: 4 },
);
// Each duplicates a connection for what blocks, with the same settings.
worker.on("error", (error) => fail(`the worker: ${error}`));
queue.on("error", (error) => fail(`the queue: ${error}`));
events.on("error", (error) => fail(`the events: ${error}`));
await Promise.all([queue.waitUntilReady(), events.waitUntilReady(), worker.waitUntilReady()]);

let given = 0;

async function giveAndWait() {
  while (Date.now() < end) {
    const number = given++;
    const delay = number % 7 === 0 ? 50 : 0;
    const job = await queue.add("double", { number }, { attempts: 2, delay });
    const result = await job.waitUntilFinished(events);
    if (result !== number * 2) {
      fail(`job ${number} returned ${result}`);
    }
  }
}

await Promise.all(Array.from({ length: AHEAD }, giveAndWait)).catch((error) => fail(error.stack));
const counts = await queue.getJobCounts();
if (counts.completed !== given || counts.failed !== 0 || given === 0) {
  fail(`${given} jobs were given; BullMQ counts ${JSON.stringify(counts)}`);
}
for (let number = 0; number < given; number++) {
  const expected = number % 10 === 0 ? 2 : 1;
  if (executed.get(number) !== expected) {
    fail(`job ${number} was executed ${executed.get(number)} times, and not ${expected}`);
  }
}
console.log(`${given} jobs were executed, each as often as it should be`);
over = true;
process.exit(0);
