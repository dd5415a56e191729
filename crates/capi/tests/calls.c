/* Calls every function of martlet.h, and checks what comes of it: `calls CLUSTER_FILE NODE_FILE ENGINE DIRECTORY`, for a cluster of one, which is node 0.
 * DIRECTORY is a place for data that does not exist yet. Prints what is wrong, with its line, and ends with 1 then. */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "martlet.h"

#define CHECK(what) ((what) ? (void)0 : wrong(__LINE__, #what))
/* A call that has to end with this status. */
#define ENDS(call, status) ended(__LINE__, #call, call, status)

static void wrong(int line, const char *what) {
    fprintf(stderr, "calls.c:%d: %s; the last error: %s\n", line, what, martlet_error());
    exit(1);
}

static void ended(int line, const char *call, martlet_status got, martlet_status wanted) {
    if (got == wanted) return;
    fprintf(stderr, "calls.c:%d: %s ended with %d, %s (%s); %d was due\n", line, call, got, martlet_status_text(got), martlet_error(), wanted);
    exit(1);
}

/* The state: the bytes of all commands, one after the other. A command's reply is how many there are. */
struct text {
    uint8_t bytes[1 << 12];
    size_t length;
    int dropped;
};

static void apply(void *context, uint64_t index, const uint8_t *command, size_t length, martlet_buffer *reply) {
    struct text *text = context;
    CHECK(index > 0);
    /* It starts anew when it is full: any command must do. */
    if (text->length + length > sizeof text->bytes) text->length = 0;
    if (length > sizeof text->bytes) length = 0;
    memcpy(text->bytes + text->length, command, length);
    text->length += length;
    uint64_t total = text->length;
    ENDS(martlet_put(reply, (const uint8_t *)&total, sizeof total), MARTLET_OK);
}
/* The bytes from a place on, which the query names. */
static void query(const void *context, const uint8_t *from, size_t length, martlet_buffer *reply) {
    const struct text *text = context;
    size_t at = length == 1 && from[0] < text->length ? from[0] : 0;
    ENDS(martlet_put(reply, text->bytes + at, text->length - at), MARTLET_OK);
}
static uint64_t transfer(const void *context, uint64_t cursor, size_t budget, martlet_buffer *part) {
    const struct text *text = context;
    martlet_put(part, text->bytes, text->length);
    return MARTLET_END;
}
static int install(void *context, const uint8_t *part, size_t length) {
    struct text *text = context;
    if (length > sizeof text->bytes) return -1;
    memcpy(text->bytes, part, length);
    text->length = length;
    return 0;
}
static void clear(void *context) { ((struct text *)context)->length = 0; }
static void drop(void *context) { ++((struct text *)context)->dropped; }

static martlet_machine machine_of(struct text *text) {
    return (martlet_machine){.size = sizeof(martlet_machine), .context = text, .apply = apply, .query = query, .transfer = transfer,
                             .install = install, .clear = clear, .drop = drop};
}

/* What a callback was told, for the thread that waits for it. */
struct told {
    pthread_mutex_t lock;
    pthread_cond_t news;
    int times;
    martlet_status status;
    uint8_t reply[64];
    size_t length;
    uint64_t session;
    martlet_replica *replica;
};
#define TOLD {.lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER}

static void tell(struct told *told, martlet_status status) {
    pthread_mutex_lock(&told->lock);
    told->status = status;
    ++told->times;
    pthread_cond_signal(&told->news);
    pthread_mutex_unlock(&told->lock);
}
static void done(void *context, martlet_status status, const uint8_t *reply, size_t length) {
    struct told *told = context;
    CHECK(length <= sizeof told->reply);
    memcpy(told->reply, reply, length);
    told->length = length;
    tell(told, status);
}
static void opened(void *context, martlet_status status, uint64_t session) {
    ((struct told *)context)->session = session;
    tell(context, status);
}
/* What it was told since it was last asked: once. */
static void await_told(int line, struct told *told, martlet_status wanted) {
    pthread_mutex_lock(&told->lock);
    while (told->times == 0) pthread_cond_wait(&told->news, &told->lock);
    if (told->times != 1) wrong(line, "told more than once");
    told->times = 0;
    pthread_mutex_unlock(&told->lock);
    ended(line, "the callback", told->status, wanted);
}
#define AWAIT(told, status) await_told(__LINE__, told, status)

/* What may not be done on the replica's own thread, and what may. */
static void inside(void *context, martlet_status status, const uint8_t *reply, size_t length) {
    struct told *told = context;
    martlet_replica *replica = told->replica;
    martlet_bytes none = {0};
    martlet_role_change role;
    uint64_t number;
    CHECK(martlet_on_replica_thread(replica) == 1);
    ENDS(martlet_propose(replica, (const uint8_t *)"x", 1, &none), MARTLET_ON_REPLICA_THREAD);
    ENDS(martlet_read(replica, NULL, 0, &none), MARTLET_ON_REPLICA_THREAD);
    ENDS(martlet_read_by_quorum(replica, NULL, 0, &none), MARTLET_ON_REPLICA_THREAD);
    ENDS(martlet_read_stale(replica, NULL, 0, &none), MARTLET_ON_REPLICA_THREAD);
    ENDS(martlet_open_session(replica, &number), MARTLET_ON_REPLICA_THREAD);
    ENDS(martlet_metric(replica, "pid", &number), MARTLET_ON_REPLICA_THREAD);
    ENDS(martlet_transfer_leadership(replica), MARTLET_ON_REPLICA_THREAD);
    ENDS(martlet_next_role(replica, 1, &role), MARTLET_ON_REPLICA_THREAD);
    ENDS(martlet_next_role(replica, 0, &role), MARTLET_NOTHING);
    ENDS(martlet_role(replica, &role), MARTLET_OK);
    ENDS(martlet_join(replica), MARTLET_ON_REPLICA_THREAD);
    ENDS(martlet_stop(replica), MARTLET_ON_REPLICA_THREAD);
    CHECK(none.data == NULL);
    done(context, status, reply, length);
}

/* A reply that is a number. */
static uint64_t number_of(const uint8_t *bytes, size_t length) {
    uint64_t number;
    CHECK(length == sizeof number);
    memcpy(&number, bytes, sizeof number);
    return number;
}
static uint64_t number_in(martlet_bytes *reply) {
    uint64_t number = number_of(reply->data, reply->length);
    martlet_bytes_free(reply);
    CHECK(reply->data == NULL && reply->length == 0);
    return number;
}

/* Waits for the lead, and returns its token. */
static uint64_t lead(martlet_replica *replica) {
    martlet_role_change role, now;
    do ENDS(martlet_next_role(replica, UINT64_MAX, &role), MARTLET_OK);
    while (role.role != MARTLET_LEADER);
    ENDS(martlet_role(replica, &now), MARTLET_OK);
    CHECK(now.role == MARTLET_LEADER && now.fencing_token == role.fencing_token && now.view == role.view && now.at_ns == role.at_ns);
    CHECK(role.fencing_token > 0 && role.view > 0 && role.leader == -1 && role.leader_address[0] == '\0');
    return role.fencing_token;
}

static void commands(martlet_replica *replica) {
    martlet_bytes reply = {0};
    struct told told = TOLD;
    ENDS(martlet_propose(replica, (const uint8_t *)"ab", 2, &reply), MARTLET_OK);
    CHECK(number_in(&reply) == 2);
    ENDS(martlet_propose_with(replica, (const uint8_t *)"c", 1, done, &told), MARTLET_OK);
    AWAIT(&told, MARTLET_OK);
    CHECK(number_of(told.reply, told.length) == 3);
    told.replica = replica;
    ENDS(martlet_propose_with(replica, NULL, 0, inside, &told), MARTLET_OK);
    AWAIT(&told, MARTLET_OK);
    CHECK(number_of(told.reply, told.length) == 3);

    ENDS(martlet_read(replica, NULL, 0, &reply), MARTLET_OK);
    CHECK(reply.length == 3 && memcmp(reply.data, "abc", 3) == 0);
    martlet_bytes_free(&reply);
    ENDS(martlet_read_with(replica, (const uint8_t *)"\1", 1, done, &told), MARTLET_OK);
    AWAIT(&told, MARTLET_OK);
    CHECK(told.length == 2 && memcmp(told.reply, "bc", 2) == 0);
    ENDS(martlet_read_by_quorum(replica, (const uint8_t *)"\1", 1, &reply), MARTLET_OK);
    CHECK(reply.length == 2 && memcmp(reply.data, "bc", 2) == 0);
    martlet_bytes_free(&reply);
    ENDS(martlet_read_by_quorum_with(replica, (const uint8_t *)"\2", 1, done, &told), MARTLET_OK);
    AWAIT(&told, MARTLET_OK);
    CHECK(told.length == 1 && told.reply[0] == 'c');
    ENDS(martlet_read_stale(replica, (const uint8_t *)"\2", 1, &reply), MARTLET_OK);
    CHECK(reply.length == 1 && reply.data[0] == 'c');
    martlet_bytes_free(&reply);

    uint8_t *long_one = calloc(1, MARTLET_MAX_COMMAND_BYTES + 1);
    ENDS(martlet_propose(replica, long_one, MARTLET_MAX_COMMAND_BYTES + 1, &reply), MARTLET_TOO_LONG);
    CHECK(strstr(martlet_error(), "the command has 1048577 bytes; allowed: up to 1048576"));
    free(long_one);
}

static void sessions(martlet_replica *replica) {
    martlet_bytes reply = {0};
    struct told told = TOLD;
    martlet_session_command once = {.seq = 1, .command = (const uint8_t *)"d", .length = 1};
    ENDS(martlet_open_session(replica, &once.session), MARTLET_OK);
    for (int again = 0; again < 3; again++) {
        ENDS(martlet_propose_once(replica, &once, &reply), MARTLET_OK);
        CHECK(number_in(&reply) == 4);
        ENDS(martlet_propose_once_with(replica, &once, done, &told), MARTLET_OK);
        AWAIT(&told, MARTLET_OK);
        CHECK(number_of(told.reply, told.length) == 4);
    }
    once.seq = 3;
    ENDS(martlet_propose_once(replica, &once, &reply), MARTLET_OUT_OF_TURN);
    once.seq = 2, once.confirmed = 1;
    ENDS(martlet_propose_once(replica, &once, &reply), MARTLET_OK);
    CHECK(number_in(&reply) == 5);
    once.seq = 1;
    ENDS(martlet_propose_once_with(replica, &once, done, &told), MARTLET_OK);
    AWAIT(&told, MARTLET_CONFIRMED);

    ENDS(martlet_open_session_with(replica, opened, &told), MARTLET_OK);
    AWAIT(&told, MARTLET_OK);
    martlet_session_command other = {.session = told.session, .seq = 1};
    CHECK(other.session != 0 && other.session != once.session);
    ENDS(martlet_close_session(replica, once.session), MARTLET_OK);
    ENDS(martlet_close_session_with(replica, other.session, done, &told), MARTLET_OK);
    AWAIT(&told, MARTLET_OK);
    CHECK(told.length == 0);
    ENDS(martlet_propose_once(replica, &once, &reply), MARTLET_SESSION_UNKNOWN);
    ENDS(martlet_propose_once(replica, &other, &reply), MARTLET_SESSION_UNKNOWN);
}

static void metrics(martlet_replica *replica) {
    uint64_t value = 0;
    size_t number = 0;
    for (const char *name; (name = martlet_metric_name(number)); number++) ENDS(martlet_metric(replica, name, &value), MARTLET_OK);
    CHECK(number > 10);
    ENDS(martlet_metric(replica, "pid", &value), MARTLET_OK);
    CHECK(value == (uint64_t)getpid());
    ENDS(martlet_metric(replica, "no such", &value), MARTLET_BAD_ARGUMENT);
}

static void after_the_end(martlet_replica *replica) {
    martlet_bytes reply = {0};
    struct told told = TOLD;
    martlet_role_change role;
    ENDS(martlet_propose(replica, NULL, 0, &reply), MARTLET_SHUTTING_DOWN);
    ENDS(martlet_read_with(replica, NULL, 0, done, &told), MARTLET_OK);
    AWAIT(&told, MARTLET_SHUTTING_DOWN);
    ENDS(martlet_read_by_quorum_with(replica, NULL, 0, done, &told), MARTLET_OK);
    AWAIT(&told, MARTLET_SHUTTING_DOWN);
    ENDS(martlet_open_session_with(replica, opened, &told), MARTLET_OK);
    AWAIT(&told, MARTLET_SHUTTING_DOWN);
    ENDS(martlet_role(replica, &role), MARTLET_OK);
    CHECK(role.role == MARTLET_STOPPED && role.fencing_token == 0);
    while (martlet_next_role(replica, UINT64_MAX, &role) == MARTLET_OK) CHECK(role.role == MARTLET_STOPPED || role.role == MARTLET_REJOINING);
    ENDS(martlet_next_role(replica, UINT64_MAX, &role), MARTLET_NOTHING);
}

static void *joins(void *replica) {
    ENDS(martlet_join(replica), MARTLET_OK);
    return NULL;
}

/* Every call, up to an end by a signal. */
static void from_start_to_signal(const char *cluster, const char *engine) {
    struct text text = {0};
    martlet_machine machine = machine_of(&text);
    martlet_options options = {.size = sizeof options, .cluster_file = cluster, .listen = "127.0.0.1:7000", .engine = engine, .idle = "adaptive",
                               .pin = "none", .priority = "normal", .timeout_us = 3600000000, .max_waiting = 64, .node = 0, .spin_us = 20};
    martlet_replica *replica;
    ENDS(martlet_start(&options, &machine, &replica), MARTLET_OK);
    martlet_setup setup;
    ENDS(martlet_started(replica, &setup), MARTLET_OK);
    CHECK(setup.node == 0 && setup.incarnation > 0 && setup.core == -1 && strcmp(setup.placement, "any core, normal class") == 0);
    CHECK(martlet_on_replica_thread(replica) == 0);
    lead(replica);
    commands(replica);
    sessions(replica);
    metrics(replica);
    ENDS(martlet_transfer_leadership(replica), MARTLET_NO_SUCCESSOR);
    ENDS(martlet_transfer_leadership_to(replica, 1), MARTLET_NO_SUCCESSOR);
    ENDS(martlet_transfer_leadership_to(replica, 0), MARTLET_OK);

    ENDS(martlet_on_signals(replica), MARTLET_OK);
    pthread_t waits;
    CHECK(pthread_create(&waits, NULL, joins, replica) == 0);
    CHECK(kill(getpid(), SIGTERM) == 0);
    ENDS(martlet_join(replica), MARTLET_OK);
    CHECK(pthread_join(waits, NULL) == 0);
    ENDS(martlet_join(replica), MARTLET_OK);
    CHECK(text.dropped == 1);
    after_the_end(replica);
    ENDS(martlet_stop(replica), MARTLET_OK);
    CHECK(text.dropped == 1);
}

static void add(void *count, uint64_t index, const uint8_t *command, size_t length, martlet_buffer *reply) {
    *(uint64_t *)count += length;
    ENDS(martlet_put(reply, count, sizeof(uint64_t)), MARTLET_OK);
}

/* With the node's file, and a state that is plain memory; and its end is asked for from here. */
static void by_the_nodes_file(const char *node) {
    uint64_t count = 0;
    martlet_machine machine = {.size = sizeof machine, .context = &count, .apply = add, .plain_bytes = sizeof count};
    martlet_options options = {.size = sizeof options, .node_file = node};
    martlet_replica *replica;
    ENDS(martlet_start(&options, &machine, &replica), MARTLET_OK);
    martlet_setup setup;
    ENDS(martlet_started(replica, &setup), MARTLET_OK);
    CHECK(strcmp(setup.placement, "any core, normal class") == 0);
    lead(replica);
    martlet_bytes reply = {0};
    ENDS(martlet_propose(replica, (const uint8_t *)"abc", 3, &reply), MARTLET_OK);
    CHECK(number_in(&reply) == 3);
    ENDS(martlet_read(replica, NULL, 0, &reply), MARTLET_OK);
    CHECK(number_in(&reply) == 3);
    /* Another one had the signals, and has been stopped. */
    ENDS(martlet_on_signals(replica), MARTLET_OK);
    martlet_request_stop(replica);
    ENDS(martlet_join(replica), MARTLET_OK);
    ENDS(martlet_stop(replica), MARTLET_OK);
}

/* A disk that takes no more ends the replica, which says so, and which file it was. */
static void with_a_disk(const char *cluster, const char *directory) {
    struct text text = {0};
    martlet_machine machine = machine_of(&text);
    martlet_options options = {.size = sizeof options, .cluster_file = cluster, .engine = "mu", .durability = "sync", .directory = directory};
    martlet_replica *replica;
    martlet_bytes reply = {0};
    uint64_t token = 0;
    for (int life = 0; life < 2; life++) {
        ENDS(martlet_start(&options, &machine, &replica), MARTLET_OK);
        uint64_t before = token;
        token = lead(replica);
        CHECK(token > before);
        ENDS(martlet_propose(replica, (const uint8_t *)"x", 1, &reply), MARTLET_OK);
        CHECK(number_in(&reply) == 1u + (unsigned)life);
        if (life == 0) ENDS(martlet_stop(replica), MARTLET_OK);
    }
    struct rlimit least = {.rlim_cur = 4096, .rlim_max = RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &least) == 0);
    martlet_status status;
    while ((status = martlet_propose(replica, (const uint8_t *)"x", 1, &reply)) == MARTLET_OK) martlet_bytes_free(&reply);
    CHECK(status == MARTLET_OUTCOME_UNKNOWN || status == MARTLET_SHUTTING_DOWN);
    ENDS(martlet_join(replica), MARTLET_DISK_FAILED);
    CHECK(strstr(martlet_error(), directory) && strstr(martlet_error(), "File too large"));
    ENDS(martlet_stop(replica), MARTLET_DISK_FAILED);
    CHECK(text.dropped == 2);

    struct rlimit any = {.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_FSIZE, &any) == 0);
    char file[4096];
    snprintf(file, sizeof file, "%s/a-file", directory);
    fclose(fopen(file, "w"));
    options.directory = file;
    ENDS(martlet_start(&options, &machine, &replica), MARTLET_DISK_FAILED);
    CHECK(replica == NULL && strstr(martlet_error(), file) && text.dropped == 3);
}

int main(int argc, char **argv) {
    CHECK(argc == 5);
    CHECK(martlet_version()[0] != '\0' && martlet_error()[0] == '\0');
    from_start_to_signal(argv[1], argv[3]);
    by_the_nodes_file(argv[2]);
    if (strcmp(argv[3], "mu") == 0) with_a_disk(argv[1], argv[4]);
    return 0;
}
