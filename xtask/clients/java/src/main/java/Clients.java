import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.Transaction;

/** A program with Jedis: counters, pipelines, transactions on keys that are watched, and messages. A connection is never opened anew. */
public class Clients {
    static final int THREADS = 4;
    static final int PIPELINE = 20;
    static int port;
    static long end;
    static final List<Thread> threads = new ArrayList<>();

    interface Work {
        void at(Jedis jedis, int number) throws Exception;
    }

    static void expect(String what, long found, long wanted) {
        if (found != wanted) {
            fail(new IllegalStateException(what + " is " + found + ", and should be " + wanted));
        }
    }

    static void fail(Throwable why) {
        why.printStackTrace();
        Runtime.getRuntime().halt(1);
    }

    static boolean goesOn() {
        return System.nanoTime() - end < 0;
    }

    static void thread(Work work, int number) {
        Thread thread = new Thread(() -> {
            try (Jedis jedis = new Jedis("127.0.0.1", port)) {
                work.at(jedis, number);
            } catch (Throwable why) {
                fail(why);
            }
        });
        threads.add(thread);
        thread.start();
    }

    /** Until the time is over, in several threads, each with a connection of its own. */
    static void several(Work work) {
        for (int number = 0; number < THREADS; number++) {
            thread((jedis, own) -> {
                while (goesOn()) {
                    work.at(jedis, own);
                }
            }, number);
        }
    }

    public static void main(String[] args) throws Exception {
        port = Integer.parseInt(args[0]);
        end = System.nanoTime() + (long) (Double.parseDouble(args[1]) * 1e9);

        long[] own = new long[THREADS];
        AtomicLong shared = new AtomicLong();
        several((jedis, number) -> {
            expect("an own counter", jedis.incr("java:own:" + number), ++own[number]);
            shared.incrementAndGet();
            jedis.incr("java:shared");
        });

        AtomicLong piped = new AtomicLong();
        several((jedis, number) -> {
            Pipeline pipeline = jedis.pipelined();
            for (int at = 0; at < PIPELINE; at++) {
                pipeline.incr("java:piped");
            }
            expect("the replies to a pipeline", pipeline.syncAndReturnAll().size(), PIPELINE);
            piped.addAndGet(PIPELINE);
        });

        AtomicLong watched = new AtomicLong();
        several((jedis, number) -> {
            jedis.watch("java:watched");
            String found = jedis.get("java:watched");
            Transaction transaction = jedis.multi();
            transaction.set("java:watched", String.valueOf(found == null ? 1 : Long.parseLong(found) + 1));
            // Null where another one was faster.
            if (transaction.exec() != null) {
                watched.incrementAndGet();
            }
        });

        AtomicLong published = new AtomicLong();
        AtomicLong heard = new AtomicLong();
        JedisPubSub listener = new JedisPubSub() {
            @Override
            public void onSubscribe(String channel, int channels) {
                thread((jedis, number) -> {
                    while (goesOn()) {
                        expect("who hears a message", jedis.publish("java:channel", String.valueOf(published.getAndIncrement())), 1);
                    }
                    jedis.publish("java:channel", "end");
                }, 0);
            }

            @Override
            public void onMessage(String channel, String message) {
                if (message.equals("end")) {
                    unsubscribe();
                } else {
                    expect("the next message", Long.parseLong(message), heard.getAndIncrement());
                }
            }
        };
        // Until it has unsubscribed; the publisher stands in the list by then.
        try (Jedis jedis = new Jedis("127.0.0.1", port)) {
            jedis.subscribe(listener, "java:channel");
        }
        for (Thread thread : threads) {
            thread.join();
        }
        expect("what was heard", heard.get(), published.get());
        try (Jedis jedis = new Jedis("127.0.0.1", port)) {
            expect("the shared counter", Long.parseLong(jedis.get("java:shared")), shared.get());
            expect("the counter of pipelines", Long.parseLong(jedis.get("java:piped")), piped.get());
            expect("the counter that is watched", Long.parseLong(jedis.get("java:watched")), watched.get());
        }
        System.out.println(shared.get() + " requests, " + piped.get() + " in pipelines, " + watched.get() + " transactions and " + heard.get() + " messages, and all counts are exact");
    }
}
