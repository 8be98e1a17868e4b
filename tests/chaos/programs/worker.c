/* A program with zklock that writes down what it does and is told: threads that take locks, look, write to the store, and give up.
 *
 *     worker SERVERS STORE LOCKS SEED SESSION_TIMEOUT_MS TRACE THREADS
 *
 * LOCKS is a list like "mutex:/a,rw:/b,semaphore3:/c,multi:/a+/d". What the lines of a trace mean stands in src/trace.rs. It says
 * "ready" when it has a client. At "final" each thread takes each lock once more, with patience, and then it says "idle"; at "end" it
 * frees its client and ends. When its input ends, so does it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "zklock.h"

#define MAX_WAYS 16
#define PATIENT_MS 60000

/* One way to take something. A semaphore has no lock. */
struct way {
    const char *path, *stance;
    zkl_lock *lock;
    zkl_semaphore *semaphore;
    int is_fresh; /* a mutex: it may be taken by a handle of its own as well */
    int guards;   /* the store is written to */
};

struct hold {
    const struct way *way;
    zkl_lock *lock;
    zkl_leases *leases;
    int64_t token;
};

struct worker {
    pthread_t thread;
    uint32_t number;
    uint64_t dice;
    int store;
};

static zkl_client *client;
static struct way ways[MAX_WAYS];
static int way_count, trace;
static const char *store_address;
static volatile int is_final;

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void note(uint64_t at, uint32_t thread, const char *format, ...)
{
    char line[512];
    int head = snprintf(line, sizeof line, "%" PRIu64 " %" PRIu32 " ", at, thread);
    va_list arguments;
    va_start(arguments, format);
    int tail = vsnprintf(line + head, sizeof line - (size_t)head, format, arguments);
    va_end(arguments);
    line[head + tail] = '\n';
    /* One write: a line is whole, or the last. */
    if (write(trace, line, (size_t)(head + tail) + 1) < 0) abort();
}

static uint64_t roll(struct worker *worker, uint64_t sides)
{
    uint64_t z = worker->dice += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return (z ^ (z >> 31)) % sides;
}

static void sleep_ms(uint64_t ms)
{
    struct timespec time = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

static void told(void *user, const zkl_event *event)
{
    (void)user;
    if (event->kind == ZKL_EVENT_CLIENT) {
        note(now(), 0, "client %d %d", event->previous, event->state);
    } else {
        note(now(), 0, "lock %s %" PRId64 " %d %d", event->path, event->token, event->previous, event->state);
    }
}

static int connect_store(void)
{
    char host[64];
    struct addrinfo *found, hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    const char *port = strchr(store_address, ':');
    snprintf(host, sizeof host, "%.*s", (int)(port - store_address), store_address);
    if (getaddrinfo(host, port + 1, &hints, &found) != 0) abort();
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (connect(fd, found->ai_addr, found->ai_addrlen) != 0) abort();
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    freeaddrinfo(found);
    return fd;
}

/* What is guarded by several mutexes as one is written for each. */
static void write_to_store(struct worker *worker, const struct hold *hold)
{
    char paths[256], line[512], answer;
    snprintf(paths, sizeof paths, "%s", hold->way->path);
    for (char *rest = paths, *path; (path = strsep(&rest, "+")) != NULL;) {
        int length = snprintf(line, sizeof line, "%s %" PRId64 "\n", path, hold->token);
        if (write(worker->store, line, (size_t)length) != length || read(worker->store, &answer, 1) != 1) _exit(0);
    }
}

static int32_t acquire(struct worker *worker, const struct way *way, int64_t limit_ms, struct hold *hold)
{
    *hold = (struct hold){.way = way, .lock = way->lock};
    int is_fresh = way->is_fresh && roll(worker, 8) == 0;
    if (is_fresh && zkl_mutex_new(client, way->path, &hold->lock) != ZKL_OK) abort();
    note(now(), worker->number, "call %s %s %" PRId64, way->path, way->stance, limit_ms);
    int32_t status = way->semaphore == NULL ? zkl_acquire_timeout(hold->lock, limit_ms)
                                            : zkl_semaphore_acquire_timeout(way->semaphore, 1, limit_ms, &hold->leases);
    uint64_t returned = now();
    if (status == ZKL_OK) {
        status = hold->leases == NULL ? zkl_fencing_token(hold->lock, &hold->token)
                                      : zkl_leases_fencing_token(hold->leases, &hold->token);
        if (status == ZKL_OK) {
            note(returned, worker->number, "got %s %" PRId64, way->path, hold->token);
            return ZKL_OK;
        }
        /* Lost before it could be named. */
        if (hold->leases != NULL) zkl_leases_release(hold->leases);
        else zkl_release(hold->lock);
    }
    note(returned, worker->number, "failed %s %d", way->path, status);
    if (is_fresh) zkl_lock_free(hold->lock);
    return status;
}

/* 1 if it is held. */
static int look(struct worker *worker, const struct hold *hold)
{
    int64_t left = 0;
    uint64_t at = now();
    int is_held = (hold->leases == NULL ? zkl_is_held(hold->lock) : zkl_leases_is_held(hold->leases)) == 1;
    uint64_t left_at = now();
    int32_t status =
        hold->leases == NULL ? zkl_remaining_ms(hold->lock, &left) : zkl_leases_remaining_ms(hold->leases, &left);
    int32_t state = hold->leases == NULL ? zkl_lock_state(hold->lock) : zkl_leases_state(hold->leases);
    uint64_t done = now();
    note(at, worker->number, "look %" PRId64 " %d %" PRIu64 " %" PRId64 " %d %" PRIu64, hold->token, is_held, left_at,
         status == ZKL_OK ? left : 0, state, done);
    return is_held;
}

static void leave(struct worker *worker, const struct hold *hold)
{
    int32_t status = ZKL_OK;
    int is_fresh = hold->lock != hold->way->lock;
    uint64_t how = roll(worker, 4);
    int waits = hold->leases != NULL || how > (is_fresh ? 1 : 0);
    note(now(), worker->number, "leave %" PRId64 " %d", hold->token, waits);
    if (hold->leases != NULL) status = zkl_leases_release(hold->leases);
    else if (waits) status = zkl_release(hold->lock);
    else if (how == 0) status = zkl_release_nowait(hold->lock);
    else zkl_lock_free(hold->lock);
    note(now(), worker->number, "left %" PRId64 " %d", hold->token, status);
    if (is_fresh) zkl_lock_free(hold->lock);
}

static void hold_for_a_while(struct worker *worker, const struct hold *hold)
{
    uint64_t steps = 1 + roll(worker, 6), longest = roll(worker, 12) == 0 ? 400 : 15;
    for (uint64_t step = 0; step < steps; step++) {
        /* Some go on when they should not; the store is there for them. */
        int is_careless = roll(worker, 2) == 0;
        int is_held = look(worker, hold);
        if (roll(worker, 4) == 0) sleep_ms(roll(worker, 30));
        if (hold->way->guards && (is_held || is_careless)) write_to_store(worker, hold);
        sleep_ms(roll(worker, longest));
    }
    look(worker, hold);
}

static void *work(void *argument)
{
    static const int64_t limits[] = {0, 100, 500, 2000, 5000, -1};
    struct worker *worker = argument;
    struct hold hold;
    worker->store = connect_store();
    while (!is_final) {
        const struct way *way = &ways[roll(worker, (uint64_t)way_count)];
        if (acquire(worker, way, limits[roll(worker, 6)], &hold) == ZKL_OK) {
            hold_for_a_while(worker, &hold);
            leave(worker, &hold);
        }
        sleep_ms(roll(worker, 20));
    }
    for (int i = 0; i < way_count; i++) {
        if (acquire(worker, &ways[((uint32_t)i + worker->number) % (uint32_t)way_count], PATIENT_MS, &hold) == ZKL_OK) {
            look(worker, &hold);
            if (hold.way->guards) write_to_store(worker, &hold);
            leave(worker, &hold);
        }
    }
    close(worker->store);
    return NULL;
}

static void add_way(struct way way)
{
    if (way_count == MAX_WAYS) abort();
    ways[way_count++] = way;
}

static void make_way(const char *kind, const char *path)
{
    zkl_lock *lock = NULL, *other = NULL;
    zkl_semaphore *semaphore = NULL;
    int32_t status;
    if (strcmp(kind, "mutex") == 0) {
        status = zkl_mutex_new(client, path, &lock);
        add_way((struct way){.path = path, .stance = "exclusive", .lock = lock, .is_fresh = 1, .guards = 1});
    } else if (strcmp(kind, "rw") == 0) {
        status = zkl_rwlock_new(client, path, &lock, &other);
        add_way((struct way){.path = path, .stance = "shared", .lock = lock});
        add_way((struct way){.path = path, .stance = "exclusive", .lock = other, .guards = 1});
    } else if (strncmp(kind, "semaphore", 9) == 0) {
        char *stance = NULL;
        status = zkl_semaphore_new(client, path, atoi(kind + 9), &semaphore);
        if (asprintf(&stance, "leases:%s", kind + 9) < 0) abort();
        add_way((struct way){.path = path, .stance = stance, .semaphore = semaphore});
    } else {
        zkl_lock *locks[8];
        size_t count = 0;
        char *paths = strdup(path), *one;
        for (char *rest = paths; (one = strsep(&rest, "+")) != NULL && count < 8;) {
            if (zkl_mutex_new(client, one, &locks[count++]) != ZKL_OK) abort();
        }
        free(paths);
        status = zkl_multi_new(locks, count, &lock);
        add_way((struct way){.path = path, .stance = "exclusive", .lock = lock, .guards = 1});
    }
    if (status != ZKL_OK) {
        fprintf(stderr, "%s %s: %s\n", kind, path, zkl_last_error_message());
        exit(1);
    }
}

static unsigned library_threads(void)
{
    unsigned count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks != NULL && (task = readdir(tasks)) != NULL;) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        FILE *file = fopen(path, "r");
        if (file != NULL && fgets(name, sizeof name, file) != NULL && strncmp(name, "zkl-", 4) == 0) count++;
        if (file != NULL) fclose(file);
    }
    if (tasks != NULL) closedir(tasks);
    return count;
}

static void await(const char *word)
{
    char line[32];
    if (fgets(line, sizeof line, stdin) == NULL || strncmp(line, word, strlen(word)) != 0) _exit(0);
}

static void say(const char *word)
{
    puts(word);
    fflush(stdout);
}

int main(int count, char **arguments)
{
    if (count != 8) return 2;
    store_address = arguments[2];
    int timeout_ms = atoi(arguments[5]), threads = atoi(arguments[7]);
    trace = open(arguments[6], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    zkl_config *config = zkl_config_new();
    zkl_config_set_session_timeout_ms(config, timeout_ms);
    zkl_config_set_connect_timeout_ms(config, 60000);
    zkl_config_set_event_callback(config, told, NULL, NULL);
    note(now(), 0, "begin %d 1", timeout_ms);
    if (zkl_client_new(arguments[1], config, &client) != ZKL_OK) {
        fprintf(stderr, "%s\n", zkl_last_error_message());
        return 1;
    }
    zkl_config_free(config);
    for (char *rest = arguments[3], *lock; (lock = strsep(&rest, ",")) != NULL;) {
        const char *kind = strsep(&lock, ":");
        make_way(kind, lock);
    }
    say("ready");

    struct worker *workers = calloc((size_t)threads, sizeof *workers);
    for (int i = 0; i < threads; i++) {
        workers[i].number = (uint32_t)i + 1;
        workers[i].dice = strtoul(arguments[4], NULL, 10) * 1000 + (unsigned)i;
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    await("final");
    is_final = 1;
    for (int i = 0; i < threads; i++) pthread_join(workers[i].thread, NULL);
    free(workers);
    say("idle");
    await("end");
    zkl_client_free(client);
    note(now(), 0, "end %u", library_threads());
    return 0;
}
