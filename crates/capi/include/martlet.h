/* Martlet: replication for a program's own state. See docs/embedding.md.
 *
 * Generated from the sources of crates/capi by `cargo xtask header`: change those. Whatever is said under "Safety" is the caller's promise. */

#ifndef MARTLET_H
#define MARTLET_H

#include <stddef.h>
#include <stdint.h>

// What transfer returns behind the last part of the state.
#define MARTLET_END UINT64_MAX

// The longest command. With a majority engine (mu, dare, apus) it is about a quarter of sizes.log_ring_bytes, less headers, where that is less: with the
// default sizes it is, slightly.
#define MARTLET_MAX_COMMAND_BYTES (1 << 20)

// The longest address of a leader, with its NUL.
#define MARTLET_ADDRESS_BYTES 97

// The largest message that martlet_fide_piggyback takes, in bytes.
#define MARTLET_MAX_PIGGYBACK_BYTES 1418

// How a call ended. Only MARTLET_OUTCOME_UNKNOWN leaves open whether a command has taken effect; after any other but MARTLET_OK,
// MARTLET_CONFIRMED and MARTLET_REPLY_TOO_LONG it has not.
typedef enum martlet_status {
    // Well.
    MARTLET_OK = 0,
    // This replica does not lead. martlet_role says who does.
    MARTLET_NOT_LEADER = 1,
    // The log has no room for more, and as many calls wait as may.
    MARTLET_LOG_FULL = 2,
    // The command is longer than is allowed: than MARTLET_MAX_COMMAND_BYTES, or with a majority engine (mu, dare, apus) than about a quarter of the log where
    // that is less; martlet_error has the limit.
    MARTLET_TOO_LONG = 3,
    // The command may have taken effect, or may yet. A session's command can be asked for again, of whoever leads then.
    MARTLET_OUTCOME_UNKNOWN = 4,
    // The time allowed ran out on a call that changes no state. Leadership may still be handed over after it.
    MARTLET_TIMED_OUT = 5,
    // This replica is shutting down, or has.
    MARTLET_SHUTTING_DOWN = 6,
    // A blocking call from a callback, which would wait for itself.
    MARTLET_ON_REPLICA_THREAD = 7,
    // The session was never opened, or closed, or has been forgotten.
    MARTLET_SESSION_UNKNOWN = 8,
    // A session's command whose turn it is not: commands of a session are numbered from 1 on, without a gap.
    MARTLET_OUT_OF_TURN = 9,
    // A session's command whose reply was confirmed, and is not kept any more. It took effect once.
    MARTLET_CONFIRMED = 10,
    // The session has as many replies that were not confirmed as are kept, or as many bytes of them.
    MARTLET_TOO_MANY_UNCONFIRMED = 11,
    // Leadership cannot be handed over: nobody else holds the whole state, or not the one who was to have it.
    MARTLET_NO_SUCCESSOR = 12,
    // An argument that must not be is null.
    MARTLET_NULL_ARGUMENT = 13,
    // An argument has a value that is not allowed; martlet_error names it.
    MARTLET_BAD_ARGUMENT = 14,
    // The replica did not start, or did not end in order, for another reason than its disk; martlet_error says why.
    MARTLET_FAILED = 15,
    // There is nothing more, or nothing yet.
    MARTLET_NOTHING = 16,
    // A panic inside of the library: a fault of it. Where the library was built to unwind, the process goes on; as it is usually built it ends.
    MARTLET_PANICKED = 17,
    // Leadership was lost before it was handed over, and did not go to the successor. If no leader is known, it may still go there.
    MARTLET_NOT_HANDED_OVER = 18,
    // Leadership is being handed over to another replica than the one asked for now.
    MARTLET_HANDING_OVER = 19,
    // A session's command that was executed before, with a reply of more than 512 MiB, which is not kept. It took effect once.
    MARTLET_REPLY_TOO_LONG = 20,
    // As many calls wait as may, and the replica gets on with them: ask again.
    MARTLET_BUSY = 21,
    // The disk refuses, or what stands there is not what was written: the replica did not start, or has ended. martlet_error names the file.
    MARTLET_DISK_FAILED = 22,
} martlet_status;

// What a replica is.
typedef enum martlet_role_kind {
    // It leads: proposals and reads are taken here.
    MARTLET_LEADER = 1,
    // It follows, or is on its way into the cluster.
    MARTLET_FOLLOWER = 2,
    // The others have removed it, or it handed its leadership over with an engine that follows views (primary-backup, hsuc, huc); it comes back by itself.
    MARTLET_REJOINING = 3,
    // It has ended.
    MARTLET_STOPPED = 4,
} martlet_role_kind;

// How it is known that an application has failed.
typedef enum martlet_evidence {
    // Certain: the kernel marked the words of all threads that acted for it.
    MARTLET_BY_WORDS = 1,
    // Certain: the kernel says that its process has ended.
    MARTLET_BY_PROCESS = 2,
    // Certain: the warden of its host says so, and proves that the application had chosen it.
    MARTLET_BY_CERTIFICATE = 3,
    // Presumed: its host has been silent for longer than planned.
    MARTLET_BY_SILENCE = 4,
    // Certain: programs inside the kernel marked the death of all threads that acted for it, or of its process, before the kernel's own words said so.
    MARTLET_BY_MARKS = 5,
} martlet_evidence;

// Where a callback puts bytes, with martlet_put; the library's own, and the callback's for as long as it runs.
typedef struct martlet_buffer martlet_buffer;

// A program's registration with the warden of its host. It is used by one thread at a time; a call beside another ends with MARTLET_BUSY.
typedef struct martlet_fide martlet_fide;

// A replica of a program's state.
typedef struct martlet_replica martlet_replica;

// Bytes that the library hands out; free them with martlet_bytes_free.
typedef struct martlet_bytes {
    // The first of them; null when there are none.
    uint8_t *data;
    // How many.
    size_t length;
} martlet_bytes;

// How a replica is to be started. Zeroes mean that something is not set, but for the size and a node's number.
typedef struct martlet_options {
    // sizeof(martlet_options): by it a library knows which of the fields below the program was compiled with. Must be set.
    size_t size;
    // The cluster's configuration file. Must be set, or node_file.
    const char *cluster_file;
    // The node's own configuration file, which names the cluster's: instead of cluster_file and node. What is set here goes before what it says.
    const char *node_file;
    // Where clients of this program reach this process, as host:port: what the others tell those who ask for the leader. The program
    // listens there itself. NULL: the address in the cluster's file.
    const char *listen;
    // How commands are replicated: "primary-backup", "mu", "dare", "apus", "hsuc" or "huc", the same for all replicas; NULL: as the cluster's file says.
    const char *engine;
    // What an acknowledged command outlives: "memory", "async" or "sync", the same for all replicas; NULL: as the cluster's file says. Beyond memory the
    // engine has to be mu or apus.
    const char *durability;
    // Where this replica keeps its data, if it keeps any on a disk: a directory of its own; NULL: as the configuration says.
    const char *directory;
    // What the replica's thread does without work: "spin", "yield", "park" or "adaptive"; NULL: as the node's file says, or "adaptive".
    const char *idle;
    // On which core the replica's thread runs: "none", "auto", or a list of cores such as "0,1"; NULL: as the node's file says, or "auto".
    const char *pin;
    // How the scheduler treats the replica's thread: "auto", "fifo", "slice" or "normal"; NULL: as the node's file says, or "auto".
    const char *priority;
    // The longest that a blocking call takes, in microseconds; 0: as long as it takes.
    uint64_t timeout_us;
    // How many calls may wait at once; 0: as many as the library thinks good.
    size_t max_waiting;
    // Which node of the cluster this process is. Not to be set with node_file.
    uint32_t node;
    // For how long the replica's thread spins after the last work before it sleeps, with "adaptive", in microseconds; 0: as the node's file says, or 50.
    uint32_t spin_us;
    // Not 0: every process of the cluster runs where this one sees it, in this network namespace or with the same rendezvous directory, so that a replica that is
    // not seen does not run, and the cluster may be founded without it. 0: it is founded when all of them are there.
    uint64_t all_here;
    // 1: this process is a replica and nothing else, which may turn core dumps off, raise the limit of descriptors, take signals (as martlet_on_signals does, and
    // ignore those that mean nothing to it), keep memory at hand, and start a second process that makes connections of a killed one end at once. 0: it is a
    // program with a replica in it, and nothing of that is done.
    uint64_t owns_process;
} martlet_options;

// The state that is replicated, as callbacks. All are called on the replica's own thread, one at a time, with `context` as their first
// argument. They must be deterministic and quick, call no blocking function of this library, and neither throw nor jump out.
typedef struct martlet_machine {
    // sizeof(martlet_machine): by it a library knows which of the callbacks below the program was compiled with. Must be set.
    size_t size;
    // Whatever the callbacks need; the library does not look at it, unless plain_bytes is set. It must be usable from another thread than the one that started the
    // replica, and live until drop has been called, or martlet_stop has returned.
    void *context;
    // Executes one command and puts its reply. `index` is its place in the log, the same on every replica, and growing. Any bytes must do.
    void (*apply)(void *context, uint64_t index, const uint8_t *command, size_t length, struct martlet_buffer *reply);
    // Answers a question without changing anything. May be null: then the answers are empty.
    void (*query)(const void *context, const uint8_t *query, size_t length, struct martlet_buffer *reply);
    // Puts the part of the state from `cursor` on (0 at the start), about `budget` bytes of it, and returns the cursor after it, below 2^63,
    // or MARTLET_END. A part of more than a gigabyte is taken by nobody. Between two parts commands are executed, here and where the parts are installed: what they do there to a part not yet
    // installed is void, and they must do to an installed part what they do here. A small state goes in one part.
    uint64_t (*transfer)(const void *context, uint64_t cursor, size_t budget, struct martlet_buffer *part);
    // Takes a part in place of whatever it covers, and returns 0. Anything else: the bytes are no part, as a replica with another program may send them, and clear is called
    // before anything else. Any bytes must do.
    int (*install)(void *context, const uint8_t *part, size_t length);
    // Forgets everything.
    void (*clear)(void *context);
    // The replica needs the context no more. May be null.
    void (*drop)(void *context);
    // For a small state that is plain memory: how many bytes it has from `context` on. They are the whole state, so there are no pointers in them; they are zeroed at the
    // start, and to forget everything, and go to other replicas as they are. Then transfer, install and clear are null, and a null query answers with the bytes. 0: the callbacks do all that.
    size_t plain_bytes;
} martlet_machine;

// How a replica has been set up.
typedef struct martlet_setup {
    // Which life of the node this process is: larger than that of every earlier process of this node.
    uint64_t incarnation;
    // How far the clocks of two cores may differ, in nanoseconds; it has been subtracted from leases.
    uint64_t skew_ns;
    // Where the replica's thread runs and how the scheduler treats it, for a log; it stands until martlet_stop.
    const char *placement;
    // The core that the replica's thread is bound to; -1: none.
    int32_t core;
    // Which node of the cluster this process is.
    uint32_t node;
    // For versions to come; zero.
    uint64_t reserved[4];
} martlet_setup;

// Told once what came of a call, on the replica's thread or, when it is refused at once, on the caller's. The reply is there while it runs,
// and empty unless the status is MARTLET_OK. It must be quick, and make no blocking call of this library.
typedef void (*martlet_done)(void *context, enum martlet_status status, const uint8_t *reply, size_t length);

// Told once which session was opened; 0 unless the status is MARTLET_OK. Otherwise as martlet_done.
typedef void (*martlet_opened)(void *context, enum martlet_status status, uint64_t session);

// A command of a session: it takes effect once, however often it is asked for, and of whichever leader.
typedef struct martlet_session_command {
    // Which session, as martlet_open_session gave it.
    uint64_t session;
    // The command's number in it, from 1 on. They are executed in this order; one whose turn it is not is refused.
    uint64_t seq;
    // The client has the replies to all commands of this session up to this number: they need not be kept.
    uint64_t confirmed;
    // The command's bytes.
    const uint8_t *command;
    // How many.
    size_t length;
} martlet_session_command;

// A replica's role from some moment on.
typedef struct martlet_role_change {
    // What the replica is.
    enum martlet_role_kind role;
    // Of a follower: the node that leads, as far as it knows; else, and when that is not known, -1.
    int32_t leader;
    // Where the leader's clients reach it; empty when there is none.
    char leader_address[MARTLET_ADDRESS_BYTES];
    // The newest view of the cluster that the replica knew then.
    uint64_t view;
    // When, on the host's clock since its start, in nanoseconds.
    uint64_t at_ns;
    // Of a leader, by which systems outside can tell it from earlier ones: whoever leads later has a larger one, whichever replica it is. 0: it does not lead.
    uint64_t fencing_token;
    // For versions to come; zero.
    uint64_t reserved[4];
} martlet_role_change;

// What is asked of an application that is monitored, and what is granted.
typedef struct martlet_resources {
    // How large messages it may send, in bytes.
    uint32_t pbsize;
    // Zero.
    uint32_t reserved;
    // How long its host may be silent before it is presumed dead, in nanoseconds; 0 asks for the shortest. Granted is 0 on one host: nothing is presumed there.
    uint64_t timeout_ns;
} martlet_resources;

// How an application has failed.
typedef struct martlet_failure {
    // How that is known.
    enum martlet_evidence evidence;
    // 1: it does nothing any more. 0: it may.
    uint32_t is_certain;
    // When the warden of this host learned it, in nanoseconds of CLOCK_MONOTONIC.
    uint64_t at_ns;
    // Which life of the application it was.
    uint64_t incarnation;
    // For versions to come; zero.
    uint64_t reserved[4];
} martlet_failure;

// What a program is told, inside of martlet_fide_poll. Any but the size may be zero. A callback may call what takes a handle.
typedef struct martlet_fide_callbacks {
    // sizeof(martlet_fide_callbacks). Must be set.
    size_t size;
    // Handed to every callback.
    void *context;
    // An application that this program monitors has failed. It is monitored no longer.
    void (*on_failure)(void *context, int appid, const struct martlet_failure *failure);
    // An application that this program monitors sends a message. Numbers that are left out are messages that were lost.
    void (*on_piggyback_rcv)(void *context, int appid, uint64_t seq, const uint8_t *message, size_t length);
    // The timeout of an application that this program monitors is another one. 0: it has quit, and is monitored no longer.
    void (*on_timeout_changed)(void *context, int appid, uint64_t timeout_ns);
    // This application is monitored by one more, which asks for messages of this size; by 0 that is no application itself.
    void (*on_monitor_req)(void *context, int appid, uint32_t pbsize);
    // How large this application's messages may be from now on.
    void (*on_pbsize_changed)(void *context, uint32_t pbsize);
    // Of the two paths to that host one is lost: another failure of the network would be taken for its death.
    void (*on_redundancy_lost)(void *context, uint16_t host, uint8_t path);
    // It is back.
    void (*on_redundancy_recovered)(void *context, uint16_t host, uint8_t path);
    // The warden is gone. Ends of processes of this host are still told, later.
    void (*on_warden_lost)(void *context);
    // There is a warden again, and this program has registered there; with another status than MARTLET_OK it refuses something, which `why` says.
    void (*on_warden_back)(void *context, enum martlet_status registered, const char *why);
} martlet_fide_callbacks;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The text of the last call on this thread that did not return MARTLET_OK; empty when there was none. It stands until the next such call on
// this thread, or the thread's end.
const char *martlet_error(void);

// A short text for a status; never null. `status` is an int, so that any value will do.
const char *martlet_status_text(int32_t status);

// Frees bytes that the library has handed out, and sets them to none. Null, and bytes freed before, are allowed.
//
// # Safety
// `bytes` is null or points to bytes that this library has filled, or to zeroes.
void martlet_bytes_free(struct martlet_bytes *bytes);

// Appends bytes to a buffer, in a callback.
//
// # Safety
// `buffer` is the one that the callback was given; `data` points to `length` bytes.
enum martlet_status martlet_put(struct martlet_buffer *buffer, const uint8_t *data, size_t length);

// The version of this library, such as "0.1.0". Those that differ in the last number alone have the same interface.
const char *martlet_version(void);

// Starts a replica with an empty state, and gives its handle. The options and the machine are copied; the machine's context is not. It returns
// when the replica is on the fabric, which is before it has a part in the cluster: see martlet_next_role. When it fails, drop is called if
// that is set, unless an argument was refused.
//
// # Safety
// The pointers are null or point to what their types say; the machine's callbacks may be called with its context, from another thread.
enum martlet_status martlet_start(const struct martlet_options *options,
                                  const struct martlet_machine *machine,
                                  struct martlet_replica **replica);

// How the replica has been set up: which life of which node it is, and on which core its thread runs.
//
// # Safety
// `replica` is one that martlet_start gave and martlet_stop has not had; `setup` points to room for the answer.
enum martlet_status martlet_started(const struct martlet_replica *replica, struct martlet_setup *setup);

// 1 on the replica's own thread, on which the machine's callbacks and those of calls run, and which no blocking call may be made on; else 0.
//
// # Safety
// `replica` is null or one that martlet_start gave and martlet_stop has not had.
int martlet_on_replica_thread(const struct martlet_replica *replica);

// Makes SIGTERM and SIGINT ask for the replica's end, as martlet_request_stop does, and SIGPIPE harmless. System calls that a signal interrupts go on; so
// a program that waits for its end waits in martlet_join. One replica of a process can have the signals, until martlet_stop has had it: for another the
// status is MARTLET_FAILED.
//
// # Safety
// `replica` is one that martlet_start gave and martlet_stop has not had.
enum martlet_status martlet_on_signals(const struct martlet_replica *replica);

// Asks the replica to leave the cluster in order and end, without waiting; from any thread, in a callback, and from a signal handler. Calls that are under
// way, and those that are made from now on, end by themselves: with MARTLET_SHUTTING_DOWN unless they were executed, and martlet_next_role with
// MARTLET_STOPPED once it has ended. So whoever has threads in calls asks for the end first, joins them, and calls martlet_stop then. Asked for a second
// time it ends without waiting for the others to take note. Null is allowed.
//
// # Safety
// `replica` is null or one that martlet_start gave and martlet_stop has not had.
void martlet_request_stop(const struct martlet_replica *replica);

// Waits until the replica has ended, without asking for it, and says why: MARTLET_OK when it was asked to, MARTLET_DISK_FAILED when its disk or what stands
// there ended it, with the file's name in martlet_error. Any number of threads may wait, and the answer stays the same. What was executed is answered
// then, and the callbacks of all calls have run. The handle is still to be freed with martlet_stop. Not from a callback: then the status is
// MARTLET_ON_REPLICA_THREAD.
//
// # Safety
// `replica` is one that martlet_start gave and martlet_stop has not had, nor gets before this has returned.
enum martlet_status martlet_join(const struct martlet_replica *replica);

// Leaves the cluster in order, waits for the end, and frees the handle, whatever the status, which is that of martlet_join; not from a callback: then it is
// MARTLET_ON_REPLICA_THREAD, and nothing has happened. What was executed is answered, and the callbacks of all calls have run. Null is allowed.
//
// # Safety
// `replica` is null or one that martlet_start gave, which nobody uses any more.
enum martlet_status martlet_stop(struct martlet_replica *replica);

// Hands leadership over to the next replica. Returns when another replica leads, or is named as the leader. With a majority engine (mu, dare, apus) this
// replica follows then. With an engine that follows views (primary-backup, hsuc, huc) it has left the cluster in order and joins it again. Calls that come
// meanwhile are told MARTLET_NOT_LEADER. The status is MARTLET_NOT_HANDED_OVER when leadership was lost on the way and did not go to another replica;
// martlet_error says who leads.
//
// # Safety
// `replica` is one that martlet_start gave and martlet_stop has not had.
enum martlet_status martlet_transfer_leadership(const struct martlet_replica *replica);

// Hands leadership over to the replica of this node; MARTLET_NOT_HANDED_OVER when it went to another one. With an engine that follows views (primary-backup,
// hsuc, huc) the successor cannot be chosen: there the status is MARTLET_NO_SUCCESSOR for any node but the one that comes next. If this replica leads and is
// named, the status is MARTLET_OK, and nothing changes.
//
// # Safety
// As martlet_transfer_leadership.
enum martlet_status martlet_transfer_leadership_to(const struct martlet_replica *replica,
                                                   uint16_t node);

// Proposes a command and waits for its reply, which comes when the command has taken effect and is replicated. Free the reply.
//
// # Safety
// `replica` is one that martlet_start gave and martlet_stop has not had; `command` points to `length` bytes; `reply` points to room.
enum martlet_status martlet_propose(const struct martlet_replica *replica,
                                    const uint8_t *command,
                                    size_t length,
                                    struct martlet_bytes *reply);

// Proposes a command. `done` is called exactly once with `context` and what came of it, if the status is MARTLET_OK, and else never.
//
// # Safety
// As martlet_propose; and `done` may be called with `context` from another thread.
enum martlet_status martlet_propose_with(const struct martlet_replica *replica,
                                         const uint8_t *command,
                                         size_t length,
                                         martlet_done done,
                                         void *context);

// Opens a session, under whose name commands can be repeated without taking effect twice.
//
// # Safety
// `replica` is one that martlet_start gave and martlet_stop has not had; `session` points to room for its name.
enum martlet_status martlet_open_session(const struct martlet_replica *replica, uint64_t *session);

// Opens a session; `done` is called exactly once with `context` and its name, if the status is MARTLET_OK, and else never.
//
// # Safety
// `replica` is one that martlet_start gave and martlet_stop has not had; `done` may be called with `context` from another thread.
enum martlet_status martlet_open_session_with(const struct martlet_replica *replica, martlet_opened done, void *context);

// Forgets a session. One that is not known is no error.
//
// # Safety
// `replica` is one that martlet_start gave and martlet_stop has not had.
enum martlet_status martlet_close_session(const struct martlet_replica *replica, uint64_t session);

// Forgets a session; `done` is called as by martlet_propose_with, with an empty reply.
//
// # Safety
// As martlet_open_session_with.
enum martlet_status martlet_close_session_with(const struct martlet_replica *replica, uint64_t session, martlet_done done, void *context);

// Proposes a session's command and waits for its reply: the same reply, however often it is asked for. Free the reply.
//
// # Safety
// As martlet_propose, for the bytes of the command.
enum martlet_status martlet_propose_once(const struct martlet_replica *replica,
                                         const struct martlet_session_command *command,
                                         struct martlet_bytes *reply);

// Proposes a session's command; `done` is called as by martlet_propose_with.
//
// # Safety
// As martlet_propose_with, for the bytes of the command.
enum martlet_status martlet_propose_once_with(const struct martlet_replica *replica,
                                              const struct martlet_session_command *command,
                                              martlet_done done,
                                              void *context);

// Asks the machine's query, linearizably: the answer is of a moment between call and return, and has every command in it that had been
// answered before the call. It costs no message with an engine that follows views (primary-backup, hsuc, huc), which checks the lease that it holds. With a
// majority engine (mu, dare, apus) it costs one access to each follower's memory. Free the reply.
//
// # Safety
// As martlet_propose, for the bytes of the query.
enum martlet_status martlet_read(const struct martlet_replica *replica,
                                 const uint8_t *query,
                                 size_t length,
                                 struct martlet_bytes *reply);

// Asks the machine's query, linearizably; `done` is called as by martlet_propose_with, with the answer.
//
// # Safety
// As martlet_propose_with, for the bytes of the query.
enum martlet_status martlet_read_with(const struct martlet_replica *replica,
                                      const uint8_t *query,
                                      size_t length,
                                      martlet_done done,
                                      void *context);

// Asks the machine's query, linearizably and without trusting any clock. It promises what martlet_read promises. But with an engine that follows views
// (primary-backup, hsuc, huc), too, it is a majority of the coordinators that says that no other replica can have led, and not the lease alone. They are asked
// once the query has been answered and all that it saw is replicated. With a majority engine (mu, dare, apus) it is martlet_read. It costs a word read from
// each coordinator, which all calls that wait share; calls executed behind it wait with it. While no majority can be reached it waits, until this replica hears
// that it leads no more (MARTLET_NOT_LEADER) or the time allowed has passed (MARTLET_TIMED_OUT). Commands need no such thing: a leader that has been succeeded
// acknowledges nothing that its successor has not found. Free the reply.
//
// # Safety
// As martlet_read.
enum martlet_status martlet_read_by_quorum(const struct martlet_replica *replica,
                                           const uint8_t *query,
                                           size_t length,
                                           struct martlet_bytes *reply);

// Asks the machine's query, linearizably and by a quorum, as martlet_read_by_quorum does; `done` is called as by martlet_propose_with, with the answer.
//
// # Safety
// As martlet_propose_with, for the bytes of the query.
enum martlet_status martlet_read_by_quorum_with(const struct martlet_replica *replica,
                                                const uint8_t *query,
                                                size_t length,
                                                martlet_done done,
                                                void *context);

// Asks the query of this replica's machine as it is, whoever leads: a follower's lags behind, a replica's that joins is in parts, and a leader's may hold what
// is not replicated yet and can be lost. Free the reply.
//
// # Safety
// As martlet_propose, for the bytes of the query.
enum martlet_status martlet_read_stale(const struct martlet_replica *replica,
                                       const uint8_t *query,
                                       size_t length,
                                       struct martlet_bytes *reply);

// What the replica is just now.
//
// # Safety
// `replica` is one that martlet_start gave and martlet_stop has not had; `role` points to room for the answer.
enum martlet_status martlet_role(const struct martlet_replica *replica, struct martlet_role_change *role);

// The next change of the replica's role, in order; the first is what it was when it started. Waits for it for up to `timeout_us`
// microseconds; then, and behind MARTLET_STOPPED, the status is MARTLET_NOTHING. Every change is given out once, to whichever thread asks. In a callback a
// timeout other than 0 is refused with MARTLET_ON_REPLICA_THREAD: it is that thread which brings the changes.
//
// # Safety
// As martlet_role.
enum martlet_status martlet_next_role(const struct martlet_replica *replica,
                                      uint64_t timeout_us,
                                      struct martlet_role_change *role);

// The name of a counter, numbered from 0 on; null behind the last.
const char *martlet_metric_name(size_t number);

// The value of a counter, as the replica has last published it: often while it works, and before it sleeps.
//
// # Safety
// `replica` is one that martlet_start gave and martlet_stop has not had; `name` is a text that ends with a NUL; `value` points to room for the
// answer.
enum martlet_status martlet_metric(const struct martlet_replica *replica,
                                   const char *name,
                                   uint64_t *value);

// Connects to the warden of this host, and gives a handle. `socket` is where it listens; NULL: what MARTLET_WARDEN in the environment says, or
// /run/martlet/warden.sock. `name` is what people are shown; NULL: what the system calls the process.
//
// # Safety
// The texts are null or end with a NUL; `fide` points to room for a handle.
enum martlet_status martlet_fide_open(const char *socket,
                                      const char *name,
                                      struct martlet_fide **fide);

// Ends a registration. An application that has not quit stays watched, and its end will be a failure. Null is allowed.
//
// # Safety
// `fide` is null or one that martlet_fide_open gave; no call uses it, now or later.
void martlet_fide_close(struct martlet_fide *fide);

// The program is this application from now on: its monitors are told when it fails. Numbers are 1 to 1073741823.
//
// # Safety
// As martlet_fide_quit.
enum martlet_status martlet_fide_join(const struct martlet_fide *fide, int appid);

// The application leaves: its end is no failure.
//
// # Safety
// `fide` is one that martlet_fide_open gave and martlet_fide_close has not had.
enum martlet_status martlet_fide_quit(const struct martlet_fide *fide);

// Says that the calling thread acts for the program, until it ends or calls martlet_fide_rest. When all acting threads of a program have been killed, the
// application has failed, which is known sooner than by its process. Any thread may call this at any time; one that acts for this registration already is left as it is.
//
// # Safety
// As martlet_fide_quit.
enum martlet_status martlet_fide_act(const struct martlet_fide *fide);

// The calling thread acts no more, for no registration.
void martlet_fide_rest(void);

// Asks to be told when an application fails; one that has not joined yet is waited for. What is granted is put where `granted` points, if it is not null.
//
// # Safety
// As martlet_fide_quit; `granted` is null or points to room.
enum martlet_status martlet_fide_monitor(const struct martlet_fide *fide,
                                         int appid,
                                         struct martlet_resources wanted,
                                         struct martlet_resources *granted);

// Asks to be told when a process of this host ends, which need not know of wardens. The number by which it is told of is put where `appid` points.
//
// # Safety
// As martlet_fide_quit; `appid` points to room.
enum martlet_status martlet_fide_monitor_process(const struct martlet_fide *fide,
                                                 int pid,
                                                 int *appid);

// To be told of that application no more.
//
// # Safety
// As martlet_fide_quit.
enum martlet_status martlet_fide_unmonitor(const struct martlet_fide *fide, int appid);

// Sends a message to all who monitor this application. Its number, from 1 on, is put where `seq` points, if it is not null.
//
// # Safety
// As martlet_fide_quit; `message` points to `length` bytes; `seq` is null or points to room.
enum martlet_status martlet_fide_piggyback(const struct martlet_fide *fide, const uint8_t *message, size_t length, uint64_t *seq);

// A descriptor that is readable when martlet_fide_poll has something to do; it stands until martlet_fide_close. -1: the argument is null. While there is no warden,
// poll every few milliseconds.
//
// # Safety
// As martlet_fide_quit, or null.
int martlet_fide_fd(const struct martlet_fide *fide);

// Calls back for what has happened. Waits for something to tell for up to `timeout_us` microseconds; negative: without end. 0 mostly reads memory and makes no system
// call. How much was told is put where `told` points, if it is not null.
//
// # Safety
// As martlet_fide_quit; `callbacks` points to what it says, and its callbacks may be called with their context; `told` is null or points to room.
enum martlet_status martlet_fide_poll(const struct martlet_fide *fide,
                                      int64_t timeout_us,
                                      const struct martlet_fide_callbacks *callbacks,
                                      size_t *told);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MARTLET_H */
