// A program with go-redis: counters, transactions, scripts, a queue and a stream, each by several goroutines.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	workers = 4
	// More than are used at once.
	pool = 64
)

var (
	ctx  = context.Background()
	add  = redis.NewScript(`return redis.call('INCRBY', KEYS[1], ARGV[1])`)
	end  time.Time
	done atomic.Int64
)

// A connection whose end is seen. go-redis finds a broken one before it uses it, and opens another one without a word; it cannot look into this one.
type seen struct {
	net.Conn
	closed *atomic.Int64
}

func (conn seen) Close() error {
	conn.closed.Add(1)
	return conn.Conn.Close()
}

func check(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}

func expect(what string, found, wanted int64) {
	if found != wanted {
		fail("%s is %d, and should be %d", what, found, wanted)
	}
}

// Until the time is over, in several goroutines.
func several(group *sync.WaitGroup, work func(number int)) {
	for number := range workers {
		group.Go(func() {
			for time.Now().Before(end) {
				work(number)
				done.Add(1)
			}
		})
	}
}

func number(client *redis.Client, key string) int64 {
	found, err := client.Get(ctx, key).Int64()
	check(err)
	return found
}

func main() {
	port := os.Args[1]
	seconds, err := strconv.ParseFloat(os.Args[2], 64)
	check(err)
	end = time.Now().Add(time.Duration(seconds * float64(time.Second)))
	var dialed, closed atomic.Int64
	client := redis.NewClient(&redis.Options{
		Addr:     "127.0.0.1:" + port,
		PoolSize: pool,
		// What goes wrong is seen: a retry would hide it.
		MaxRetries: -1,
		Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			dialed.Add(1)
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			return seen{conn, &closed}, err
		},
	})
	group := &sync.WaitGroup{}

	var own [workers]int64
	var shared atomic.Int64
	several(group, func(at int) {
		own[at]++
		found, err := client.Incr(ctx, fmt.Sprint("go:own:", at)).Result()
		check(err)
		expect("an own counter", found, own[at])
		shared.Add(1)
		check(client.Incr(ctx, "go:shared").Err())
	})

	var scripted atomic.Int64
	several(group, func(int) {
		scripted.Add(3)
		check(add.Run(ctx, client, []string{"go:scripted"}, 3).Err())
	})

	var watched atomic.Int64
	several(group, func(int) {
		err := client.Watch(ctx, func(tx *redis.Tx) error {
			found, err := tx.Get(ctx, "go:watched").Int64()
			if err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
			_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
				pipe.Set(ctx, "go:watched", found+1, 0)
				return nil
			})
			return err
		}, "go:watched")
		// Another one was faster.
		if errors.Is(err, redis.TxFailedErr) {
			return
		}
		check(err)
		watched.Add(1)
	})

	var piped atomic.Int64
	several(group, func(int) {
		replies, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for range 20 {
				pipe.Incr(ctx, "go:piped")
			}
			return nil
		})
		check(err)
		expect("the replies to a pipeline", int64(len(replies)), 20)
		piped.Add(20)
	})

	// A queue that is waited at, and a stream with a group of consumers.
	consumers := &sync.WaitGroup{}
	var sent, received, produced, consumed atomic.Int64
	check(client.XGroupCreateMkStream(ctx, "go:stream", "group", "0").Err())
	several(group, func(int) {
		at := sent.Add(1)
		check(client.LPush(ctx, "go:queue", at).Err())
		produced.Add(1)
		check(client.XAdd(ctx, &redis.XAddArgs{Stream: "go:stream", Values: []any{"number", at}}).Err())
	})
	var sum atomic.Int64
	for number := range workers {
		consumers.Go(func() {
			for {
				reply, err := client.BRPop(ctx, time.Second, "go:queue").Result()
				if errors.Is(err, redis.Nil) {
					if time.Now().After(end) && received.Load() == sent.Load() {
						return
					}
					continue
				}
				check(err)
				value, err := strconv.ParseInt(reply[1], 10, 64)
				check(err)
				sum.Add(value)
				received.Add(1)
			}
		})
		consumers.Go(func() {
			for {
				read := &redis.XReadGroupArgs{Group: "group", Consumer: fmt.Sprint(number), Streams: []string{"go:stream", ">"}, Count: 10, Block: time.Second}
				replies, err := client.XReadGroup(ctx, read).Result()
				if errors.Is(err, redis.Nil) {
					if time.Now().After(end) && consumed.Load() == produced.Load() {
						return
					}
					continue
				}
				check(err)
				for _, message := range replies[0].Messages {
					acknowledged, err := client.XAck(ctx, "go:stream", "group", message.ID).Result()
					check(err)
					expect("what was acknowledged", acknowledged, 1)
					consumed.Add(1)
				}
			}
		})
	}

	group.Wait()
	consumers.Wait()
	expect("the shared counter", number(client, "go:shared"), shared.Load())
	expect("the counter of scripts", number(client, "go:scripted"), scripted.Load())
	expect("the counter that is watched", number(client, "go:watched"), watched.Load())
	expect("the counter of pipelines", number(client, "go:piped"), piped.Load())
	expect("the sum of what was received", sum.Load(), sent.Load()*(sent.Load()+1)/2)
	expect("what was consumed", consumed.Load(), produced.Load())
	expect("the number of connections that have been closed", closed.Load(), 0)
	fmt.Printf("%d pieces of work were done over %d connections, and all counts are exact\n", done.Load(), dialed.Load())
}
