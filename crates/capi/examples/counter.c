/* A replicated counter, `counter CLUSTER_FILE NODE HOST:PORT`. To a line `open` it answers with a session, to `SESSION SEQ` with the counter
 * after one more, however often the same is asked for and of whichever node leads, and to either with why not. */
#include <arpa/inet.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "martlet.h"

static martlet_replica *replica;

static void apply(void *count, uint64_t index, const uint8_t *command, size_t length, martlet_buffer *reply) {
    ++*(uint64_t *)count;
    martlet_put(reply, count, sizeof(uint64_t));
}
static uint64_t transfer(const void *count, uint64_t cursor, size_t budget, martlet_buffer *part) {
    martlet_put(part, count, sizeof(uint64_t));
    return MARTLET_END;
}
static int install(void *count, const uint8_t *part, size_t length) {
    if (length != sizeof(uint64_t)) return -1;
    memcpy(count, part, length);
    return 0;
}
static void clear(void *count) { *(uint64_t *)count = 0; }

static void *serve(void *client) {
    int out = (int)(intptr_t)client;
    FILE *stream = fdopen(out, "r");
    char line[128];
    while (fgets(line, sizeof line, stream)) {
        uint64_t number = 0;
        martlet_session_command once = {0};
        martlet_bytes reply = {0};
        martlet_status status;
        if (sscanf(line, "%" SCNu64 " %" SCNu64, &once.session, &once.seq) == 2) {
            once.confirmed = once.seq ? once.seq - 1 : 0;
            status = martlet_propose_once(replica, &once, &reply);
            if (status == MARTLET_OK) memcpy(&number, reply.data, sizeof number);
            martlet_bytes_free(&reply);
        } else {
            status = martlet_open_session(replica, &number);
        }
        status == MARTLET_OK ? dprintf(out, "%" PRIu64 "\n", number) : dprintf(out, "error: %s\n", martlet_error());
    }
    fclose(stream);
    return NULL;
}

static void on_signal(int number) { martlet_request_stop(replica); }

int main(int argc, char **argv) {
    static uint64_t count;
    char *colon = argc == 4 ? strrchr(argv[3], ':') : NULL;
    if (!colon) return fprintf(stderr, "counter CLUSTER_FILE NODE HOST:PORT\n"), 2;
    martlet_options options = {.cluster_file = argv[1], .node = (uint16_t)atoi(argv[2]), .listen = argv[3]};
    martlet_machine machine = {.context = &count, .apply = apply, .transfer = transfer, .install = install, .clear = clear};
    struct sigaction ends = {.sa_handler = on_signal}; /* and accept does not go on */
    signal(SIGPIPE, SIG_IGN);
    if (martlet_start(&options, &machine, &replica) != MARTLET_OK) return fprintf(stderr, "counter: %s\n", martlet_error()), 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(colon + 1))};
    char host[64] = {0};
    memcpy(host, argv[3], (size_t)(colon - argv[3]) < sizeof host ? (size_t)(colon - argv[3]) : 0);
    inet_pton(AF_INET, host, &address.sin_addr);
    sigaction(SIGTERM, &ends, NULL), sigaction(SIGINT, &ends, NULL);
    int listener = socket(AF_INET, SOCK_STREAM, 0), client, on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 64)) return perror(argv[3]), 1;
    for (pthread_t thread; (client = accept(listener, NULL, NULL)) >= 0; pthread_detach(thread))
        if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)client)) return perror("thread"), 1;
    /* Its threads may be in calls: it waits for the end, which the others have taken note of then, and goes. */
    martlet_role_change role = {.role = MARTLET_FOLLOWER};
    while (role.role != MARTLET_STOPPED && martlet_next_role(replica, UINT64_MAX, &role) == MARTLET_OK) {}
    return role.role != MARTLET_STOPPED;
}
