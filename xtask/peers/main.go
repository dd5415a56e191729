// What `cargo xtask peers` measures beside a cluster of Martlet: servers of others, and clients of theirs.
//
//	peers put etcd ADDRESS,... CLIENTS SECONDS BYTES      PUTs by etcd's own client, over gRPC
//	peers put raft ADDRESS,... CLIENTS SECONDS BYTES      PUTs to `peers raft`
//	peers put redis ADDRESS,... CLIENTS SECONDS BYTES     SETs over the Redis protocol
//	peers etcd OPTION...                                  etcd
//	peers raft NUMBER ADDRESS,...                         a key-value store on hashicorp/raft, its log in memory
//
// `put` asks for as long as that, after a tenth of it besides that warms up, and prints what came as an object of JSON.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"go.uber.org/zap"
)

func main() {
	switch {
	case len(os.Args) == 7 && os.Args[1] == "put":
		put(os.Args[2], strings.Split(os.Args[3], ","), number(os.Args[4]), number(os.Args[5]), number(os.Args[6]))
	case len(os.Args) == 4 && os.Args[1] == "raft":
		serve(number(os.Args[2]), strings.Split(os.Args[3], ","))
	case len(os.Args) > 1 && os.Args[1] == "etcd":
		etcdmain.Main(os.Args[1:])
	default:
		log.Fatalf("%q: allowed are `put etcd|raft|redis ADDRESSES CLIENTS SECONDS BYTES`, `raft NUMBER ADDRESSES` and `etcd OPTION...`", os.Args[1:])
	}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		log.Fatalf("%q is no number", text)
	}
	return n
}

// Sets a key, and returns when that is acknowledged.
type putter func(key, value []byte) error

// What is printed.
type figures struct {
	P50ns    int64 `json:"p50_ns"`
	P99ns    int64 `json:"p99_ns"`
	Requests int   `json:"requests"`
}

// As many as those of `martlet bench put`, and below as long.
const keys = 64

// Clients that have one request under way each.
func put(what string, addresses []string, clients, seconds, bytes int) {
	putters := make([]putter, clients)
	for n := range putters {
		var err error
		if putters[n], err = open(what, addresses); err != nil {
			log.Fatalf("%s at %v: %v", what, addresses, err)
		}
	}
	lasting := time.Duration(seconds) * time.Second
	putAll(putters, lasting/10, bytes)
	took := putAll(putters, lasting, bytes)
	if len(took) == 0 {
		log.Fatalf("%s: no PUT in %v", what, lasting)
	}
	slices.Sort(took)
	at := func(percent int) int64 { return took[(len(took)-1)*percent/100] }
	if err := json.NewEncoder(os.Stdout).Encode(figures{at(50), at(99), len(took)}); err != nil {
		log.Fatal(err)
	}
}

// PUTs for that long. Returns how long each took, in nanoseconds.
func putAll(putters []putter, lasting time.Duration, bytes int) []int64 {
	var mutex sync.Mutex
	var group sync.WaitGroup
	var all []int64
	end := time.Now().Add(lasting)
	for _, put := range putters {
		group.Go(func() {
			value := []byte(strings.Repeat("v", bytes))
			var took []int64
			for began := time.Now(); began.Before(end); began = time.Now() {
				if err := put(fmt.Appendf(nil, "%032d", rand.IntN(keys)), value); err != nil {
					log.Fatalf("a PUT: %v", err)
				}
				took = append(took, time.Since(began).Nanoseconds())
			}
			mutex.Lock()
			defer mutex.Unlock()
			all = append(all, took...)
		})
	}
	group.Wait()
	return all
}

func open(what string, addresses []string) (putter, error) {
	switch what {
	case "etcd":
		return openEtcd(addresses)
	case "raft":
		return openLeader(addresses, putRaft)
	case "redis":
		return openLeader(addresses, putRedis)
	}
	return nil, fmt.Errorf("%q is asked; allowed are etcd, raft and redis", what)
}

// How long servers may take to elect one that leads.
const patience = 30 * time.Second

// How long a PUT may take: servers that have lost their majority answer none.
const longest = 10 * time.Second

// A client of the member that leads: another one would pass each request on.
func openEtcd(addresses []string) (putter, error) {
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		for _, address := range addresses {
			client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, Logger: zap.NewNop()})
			if err != nil {
				return nil, err
			}
			soon, cancel := context.WithTimeout(context.Background(), time.Second)
			status, err := client.Status(soon, address)
			cancel()
			if err == nil && status.Leader == status.Header.MemberId {
				return func(key, value []byte) error {
					late, cancel := context.WithTimeout(context.Background(), longest)
					defer cancel()
					_, err := client.Put(late, string(key), string(value))
					return err
				}, nil
			}
			client.Close()
		}
	}
	return nil, fmt.Errorf("no member leads")
}

// A connection with the server that takes a first PUT.
func openLeader(addresses []string, over func(net.Conn, *bufio.Reader) putter) (putter, error) {
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		for _, address := range addresses {
			conn, err := net.DialTimeout("tcp", address, time.Second)
			if err != nil {
				continue
			}
			put := over(conn, bufio.NewReader(conn))
			if put([]byte("first"), nil) == nil {
				return put, nil
			}
			conn.Close()
		}
	}
	return nil, fmt.Errorf("no server leads")
}

// Requests: two lengths of 4 bytes, key, value. Answers: one byte, 0 when it is done.
func putRaft(conn net.Conn, in *bufio.Reader) putter {
	return func(key, value []byte) error {
		request := binary.LittleEndian.AppendUint32(nil, uint32(len(key)))
		request = binary.LittleEndian.AppendUint32(request, uint32(len(value)))
		conn.SetDeadline(time.Now().Add(longest))
		if _, err := conn.Write(append(append(request, key...), value...)); err != nil {
			return err
		}
		if done, err := in.ReadByte(); err != nil || done != 0 {
			return fmt.Errorf("it is refused, or lost (%v)", err)
		}
		return nil
	}
}

func putRedis(conn net.Conn, in *bufio.Reader) putter {
	return func(key, value []byte) error {
		conn.SetDeadline(time.Now().Add(longest))
		if _, err := fmt.Fprintf(conn, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(key), key, len(value), value); err != nil {
			return err
		}
		if line, err := in.ReadString('\n'); err != nil || line != "+OK\r\n" {
			return fmt.Errorf("it is refused, or lost: %q (%v)", line, err)
		}
		return nil
	}
}

// The store: the map that every entry sets a key of.
type store struct {
	values map[string][]byte
}

func (s *store) Apply(entry *raft.Log) any {
	key := binary.LittleEndian.Uint32(entry.Data)
	s.values[string(entry.Data[8:8+key])] = entry.Data[8+key:]
	return nil
}

func (s *store) Snapshot() (raft.FSMSnapshot, error) { return nil, fmt.Errorf("it keeps all entries") }
func (s *store) Restore(io.ReadCloser) error         { return fmt.Errorf("it keeps all entries") }

// One of the servers: the others reach it at its address, clients at the port after that.
func serve(own int, addresses []string) {
	config := raft.DefaultConfig()
	config.LocalID = raft.ServerID(strconv.Itoa(own))
	config.LogLevel = "WARN"
	config.SnapshotThreshold = 1 << 40
	servers := raft.Configuration{}
	for n, address := range addresses {
		servers.Servers = append(servers.Servers, raft.Server{ID: raft.ServerID(strconv.Itoa(n)), Address: raft.ServerAddress(address)})
	}
	logs := raft.NewInmemStore()
	snapshots := raft.NewInmemSnapshotStore()
	transport, err := raft.NewTCPTransport(addresses[own], nil, 3, 10*time.Second, os.Stderr)
	if err != nil {
		log.Fatal(err)
	}
	if err := raft.BootstrapCluster(config, logs, logs, snapshots, transport, servers); err != nil {
		log.Fatal(err)
	}
	node, err := raft.NewRaft(config, &store{map[string][]byte{}}, logs, logs, snapshots, transport)
	if err != nil {
		log.Fatal(err)
	}
	host, port, err := net.SplitHostPort(addresses[own])
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(number(port)+1)))
	if err != nil {
		log.Fatal(err)
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go answer(node, conn)
	}
}

func answer(node *raft.Raft, conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		head, err := in.Peek(8)
		if err != nil {
			return
		}
		entry := make([]byte, 8+binary.LittleEndian.Uint32(head)+binary.LittleEndian.Uint32(head[4:]))
		if _, err := io.ReadFull(in, entry); err != nil {
			return
		}
		answer := []byte{0}
		if err := node.Apply(entry, 10*time.Second).Error(); err != nil {
			answer[0] = 1
		}
		if _, err := conn.Write(answer); err != nil {
			return
		}
	}
}
