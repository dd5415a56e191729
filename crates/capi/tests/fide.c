/* Calls every function of failure detection, against a warden that the test runs: `fide SOCKET`. Prints what is wrong, with its line, and ends with 1 then. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "martlet.h"

#define CHECK(what) ((what) ? (void)0 : wrong(__LINE__, #what))
#define ENDS(call, status) CHECK((call) == (status))

static void wrong(int line, const char *what) {
    fprintf(stderr, "fide.c:%d: %s; the last error: %s\n", line, what, martlet_error());
    exit(1);
}

struct told {
    martlet_fide *fide;
    int failed, messages, left, asked, pbsize, lost;
    martlet_failure failure;
    uint64_t seq;
    char message[64];
};

static void on_failure(void *context, int appid, const martlet_failure *failure) {
    struct told *told = context;
    told->failed = appid;
    told->failure = *failure;
    /* A callback may use the handle. */
    if (appid == 7) ENDS(martlet_fide_monitor(told->fide, 7, (martlet_resources){0}, NULL), MARTLET_OK);
}
static void on_piggyback_rcv(void *context, int appid, uint64_t seq, const uint8_t *message, size_t length) {
    struct told *told = context;
    CHECK(appid == 7 && length < sizeof told->message);
    memcpy(told->message, message, length);
    told->seq = seq;
    ++told->messages;
}
static void on_timeout_changed(void *context, int appid, uint64_t timeout_ns) {
    CHECK(timeout_ns == 0);
    ((struct told *)context)->left = appid;
}
static void on_monitor_req(void *context, int appid, uint32_t pbsize) {
    CHECK(appid == 8 && pbsize == 40);
    ++((struct told *)context)->asked;
}
static void on_pbsize_changed(void *context, uint32_t pbsize) { ((struct told *)context)->pbsize = (int)pbsize; }
static void on_warden_lost(void *context) { ++((struct told *)context)->lost; }
static void on_warden_back(void *context, martlet_status registered, const char *why) { CHECK(context && registered == MARTLET_OK && why); }

static martlet_fide_callbacks callbacks_of(struct told *told) {
    return (martlet_fide_callbacks){.size = sizeof(martlet_fide_callbacks), .context = told, .on_failure = on_failure,
                                    .on_piggyback_rcv = on_piggyback_rcv, .on_timeout_changed = on_timeout_changed,
                                    .on_monitor_req = on_monitor_req, .on_pbsize_changed = on_pbsize_changed,
                                    .on_warden_lost = on_warden_lost, .on_warden_back = on_warden_back};
}

/* A process of the test: it dies with the test, whose output would never end else. Returns 0 in the child. */
static pid_t start(void) {
    pid_t parent = getpid(), child = fork();
    CHECK(child >= 0);
    if (child == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)) exit(1);
    return child;
}

/* Polls until something is set, or the child has found something wrong. */
static void await(const int *what, const struct told *told, const martlet_fide_callbacks *callbacks, size_t *count, pid_t child) {
    while (*what == 0) {
        ENDS(martlet_fide_poll(told->fide, 100000, callbacks, count), MARTLET_OK);
        siginfo_t ended = {0};
        CHECK(waitid(P_PID, child, &ended, WEXITED | WNOHANG | WNOWAIT) == 0);
        CHECK(ended.si_pid == 0 || (ended.si_code == CLD_EXITED ? ended.si_status == 0 : ended.si_status == SIGKILL));
    }
}

/* Application 7: joins, acts, sends once it is monitored, and waits to be killed; or quits. */
static void application(const char *socket, int quits) {
    struct told told = {0};
    ENDS(martlet_fide_open(socket, "seven", &told.fide), MARTLET_OK);
    ENDS(martlet_fide_join(told.fide, 7), MARTLET_OK);
    ENDS(martlet_fide_act(told.fide), MARTLET_OK);
    ENDS(martlet_fide_act(told.fide), MARTLET_OK);
    martlet_fide_callbacks callbacks = callbacks_of(&told);
    if (quits) {
        martlet_fide_rest();
        ENDS(martlet_fide_act(told.fide), MARTLET_OK);
        ENDS(martlet_fide_quit(told.fide), MARTLET_OK);
        martlet_fide_close(told.fide);
        exit(0);
    }
    /* Without end: a parent that has found something wrong takes this process along. */
    while (told.pbsize == 0) ENDS(martlet_fide_poll(told.fide, -1, &callbacks, NULL), MARTLET_OK);
    CHECK(told.asked == 1 && told.pbsize == 40);
    uint64_t seq = 0;
    ENDS(martlet_fide_piggyback(told.fide, (const uint8_t *)"hello", 5, &seq), MARTLET_OK);
    CHECK(seq == 1);
    CHECK(martlet_fide_piggyback(told.fide, (const uint8_t *)told.message, 41, NULL) == MARTLET_FAILED);
    CHECK(strstr(martlet_error(), "allowed to application 7 are 40"));
    for (;;) pause();
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    const char *socket = argv[1];
    struct told told = {0};
    CHECK(martlet_fide_open("/nowhere/at/all", NULL, &told.fide) == MARTLET_FAILED && told.fide == NULL);
    ENDS(martlet_fide_open(socket, NULL, NULL), MARTLET_NULL_ARGUMENT);
    ENDS(martlet_fide_open(socket, "eight", &told.fide), MARTLET_OK);
    CHECK(martlet_fide_fd(told.fide) >= 0 && martlet_fide_fd(NULL) == -1);
    ENDS(martlet_fide_join(told.fide, 0), MARTLET_BAD_ARGUMENT);
    CHECK(strstr(martlet_error(), "application 0; allowed are 1 to"));
    ENDS(martlet_fide_join(NULL, 1), MARTLET_NULL_ARGUMENT);
    ENDS(martlet_fide_join(told.fide, 8), MARTLET_OK);
    martlet_resources granted;
    ENDS(martlet_fide_monitor(told.fide, 7, (martlet_resources){.pbsize = 40}, &granted), MARTLET_OK);
    CHECK(granted.pbsize == 40 && granted.timeout_ns == 0);
    martlet_fide_callbacks callbacks = callbacks_of(&told);
    size_t count = 1;
    ENDS(martlet_fide_poll(told.fide, 0, &callbacks, &count), MARTLET_OK);
    CHECK(count == 0);

    pid_t child = start();
    if (child == 0) application(socket, 0);
    await(&told.messages, &told, &callbacks, &count, child);
    CHECK(count > 0 && told.seq == 1 && strcmp(told.message, "hello") == 0);
    kill(child, SIGKILL);
    await(&told.failed, &told, &callbacks, NULL, child);
    CHECK(told.failed == 7 && told.failure.is_certain && told.failure.incarnation);
    waitpid(child, NULL, 0);

    child = start();
    if (child == 0) application(socket, 1);
    await(&told.left, &told, &callbacks, NULL, child);
    int status;
    CHECK(told.left == 7 && waitpid(child, &status, 0) == child && status == 0);

    child = start();
    if (child == 0)
        for (;;) pause();
    int number = 0;
    CHECK(martlet_fide_monitor_process(told.fide, -5, &number) == MARTLET_BAD_ARGUMENT && strstr(martlet_error(), "process -5"));
    ENDS(martlet_fide_monitor_process(told.fide, child, &number), MARTLET_OK);
    kill(child, SIGKILL);
    told.failed = 0;
    await(&told.failed, &told, &callbacks, NULL, child);
    CHECK(told.failed == number && told.failure.evidence == MARTLET_BY_PROCESS);
    waitpid(child, NULL, 0);

    ENDS(martlet_fide_monitor(told.fide, 9, (martlet_resources){0}, NULL), MARTLET_OK);
    ENDS(martlet_fide_unmonitor(told.fide, 9), MARTLET_OK);
    callbacks.size = 1;
    CHECK(martlet_fide_poll(told.fide, 0, &callbacks, NULL) == MARTLET_BAD_ARGUMENT && strstr(martlet_error(), "callbacks->size"));
    ENDS(martlet_fide_quit(told.fide), MARTLET_OK);
    CHECK(martlet_fide_quit(told.fide) == MARTLET_FAILED && told.lost == 0);
    martlet_fide_close(told.fide);
    martlet_fide_close(NULL);
    return 0;
}
