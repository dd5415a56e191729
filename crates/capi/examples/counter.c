/* A replicated counter, `counter CLUSTER_FILE NODE HOST:PORT`. To a line `open` it answers with a session, to `SESSION SEQ` with the counter
 * after one more, however often the same is asked for and of whichever node leads, and to either with why not. SIGTERM ends it in order. */
#include <inttypes.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "martlet.h"

static martlet_replica *replica;

static void apply(void *count, uint64_t index, const uint8_t *command, size_t length, martlet_buffer *reply) {
    ++*(uint64_t *)count;
    martlet_put(reply, count, sizeof(uint64_t));
}

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

static void *take_clients(void *listener) {
    pthread_t thread;
    for (int client; (client = accept((int)(intptr_t)listener, NULL, NULL)) >= 0; pthread_detach(thread))
        if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)client)) break;
    perror("counter: no more clients");
    exit(1);
}

static int fail(const char *why) { return fprintf(stderr, "counter: %s\n", why), 1; }

int main(int argc, char **argv) {
    static uint64_t count;
    char *port = argc == 4 ? strrchr(argv[3], ':') : NULL;
    if (!port) return fail("the arguments are CLUSTER_FILE NODE HOST:PORT");
    martlet_options options = {.size = sizeof options, .cluster_file = argv[1], .node = (uint32_t)atoi(argv[2]), .listen = argv[3]};
    martlet_machine machine = {.size = sizeof machine, .context = &count, .plain_bytes = sizeof count, .apply = apply};
    if (martlet_start(&options, &machine, &replica) || martlet_on_signals(replica)) return fail(martlet_error());
    *port++ = '\0';
    struct addrinfo *at, hints = {.ai_socktype = SOCK_STREAM};
    if (getaddrinfo(argv[3], port, &hints, &at)) return fail("there is no such address");
    int listener = socket(at->ai_family, SOCK_STREAM, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    pthread_t thread;
    if (bind(listener, at->ai_addr, at->ai_addrlen) || listen(listener, 64)) return perror(argv[3]), 1;
    if (pthread_create(&thread, NULL, take_clients, (void *)(intptr_t)listener)) return fail("no thread for clients");
    /* Until a signal ends it, or its disk. Clients' threads may still be in calls, which are all answered, so the handle is not freed. */
    return martlet_join(replica) ? fail(martlet_error()) : 0;
}
