/* A program that uses zklock and writes a trace of its actions and events. Its threads acquire locks, check their holds,
 * write to the store, and release the locks.
 *
 *     worker SERVERS STORE LOCKS SEED SESSION_TIMEOUT_MS TRACE THREADS
 *
 * LOCKS is a list such as "mutex:/a,rw:/b,semaphore3:/c,multi:/a+/d". src/trace.rs describes the lines of the trace. The
 * program prints "ready" when it has a client. After the command "final", each thread acquires each lock once more with a
 * long time limit, and then the program prints "idle". After the command "end", it frees its client and exits. It also exits
 * when its input ends. */
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

#define MAX_CHOICES 16
#define FINAL_LIMIT_MS 60000

/* A way to acquire a lock or a lease. A semaphore has no lock handle. */
struct lock_choice {
    const char *path, *exclusion;
    zkl_lock *lock;
    zkl_semaphore *semaphore;
    int allows_new_handle; /* a mutex: a new handle may be used as well */
    int writes_store;      /* whether the hold allows writes to the store */
};

struct hold {
    const struct lock_choice *choice;
    zkl_lock *lock;
    zkl_hold *leases;
    int64_t token;
};

struct worker {
    pthread_t thread;
    uint32_t number;
    uint64_t rng_state;
    int store;
};

static zkl_client *client;
static struct lock_choice choices[MAX_CHOICES];
static int choice_count, trace;
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
    /* A single system call writes the line, so that only the last line of a trace can be incomplete. */
    if (write(trace, line, (size_t)(head + tail) + 1) < 0) abort();
}

static uint64_t random_below(struct worker *worker, uint64_t sides)
{
    uint64_t z = worker->rng_state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return (z ^ (z >> 31)) % sides;
}

static void sleep_ms(uint64_t ms)
{
    struct timespec time = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

static void on_event(void *user, const zkl_event *event)
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

/* Writes to the store. For a multi-lock, writes once for each of its paths. */
static void write_to_store(struct worker *worker, const struct hold *hold)
{
    char paths[256], line[512], answer;
    snprintf(paths, sizeof paths, "%s", hold->choice->path);
    for (char *rest = paths, *path; (path = strsep(&rest, "+")) != NULL;) {
        int length = snprintf(line, sizeof line, "%s %" PRId64 "\n", path, hold->token);
        if (write(worker->store, line, (size_t)length) != length || read(worker->store, &answer, 1) != 1) _exit(0);
    }
}

static int32_t acquire(struct worker *worker, const struct lock_choice *choice, int64_t limit_ms, struct hold *hold)
{
    *hold = (struct hold){.choice = choice, .lock = choice->lock};
    int uses_new_handle = choice->allows_new_handle && random_below(worker, 8) == 0;
    if (uses_new_handle && zkl_mutex_new(client, choice->path, &hold->lock) != ZKL_OK) abort();
    note(now(), worker->number, "call %s %s %" PRId64, choice->path, choice->exclusion, limit_ms);
    int32_t status = choice->semaphore == NULL ? zkl_acquire_timeout(hold->lock, limit_ms)
                                               : zkl_semaphore_acquire_timeout(choice->semaphore, 1, limit_ms, &hold->leases);
    uint64_t returned = now();
    if (status == ZKL_OK) {
        zkl_hold_info info = {.size = sizeof info};
        status = hold->leases == NULL ? zkl_fencing_token(hold->lock, &info.token) : zkl_hold_view(hold->leases, &info);
        hold->token = info.token;
        if (status == ZKL_OK) {
            note(returned, worker->number, "got %s %" PRId64, choice->path, hold->token);
            return ZKL_OK;
        }
        /* The hold was lost before its token could be read. */
        if (hold->leases != NULL) zkl_hold_release(hold->leases);
        else zkl_release(hold->lock);
    }
    note(returned, worker->number, "failed %s %d", choice->path, status);
    if (uses_new_handle) zkl_lock_free(hold->lock);
    return status;
}

/* Checks a hold. Returns 1 if it is held. */
static int check_hold(struct worker *worker, const struct hold *hold)
{
    zkl_hold_info info = {.size = sizeof info};
    uint64_t at = now();
    int is_held = (hold->leases == NULL ? zkl_is_held(hold->lock) : zkl_hold_is_held(hold->leases)) == 1;
    uint64_t left_at = now();
    int32_t status =
        hold->leases == NULL ? zkl_remaining_ms(hold->lock, &info.remaining_ms) : zkl_hold_view(hold->leases, &info);
    int32_t of_leases = status == ZKL_OK ? info.state : status;
    int32_t state = hold->leases == NULL ? zkl_lock_state(hold->lock) : of_leases;
    uint64_t done = now();
    note(at, worker->number, "look %" PRId64 " %d %" PRIu64 " %" PRId64 " %d %" PRIu64, hold->token, is_held, left_at,
         status == ZKL_OK ? info.remaining_ms : 0, state, done);
    return is_held;
}

static void release_hold(struct worker *worker, const struct hold *hold)
{
    int32_t status = ZKL_OK;
    int uses_new_handle = hold->lock != hold->choice->lock;
    uint64_t how = random_below(worker, 4);
    int waits = hold->leases != NULL || how > (uses_new_handle ? 1 : 0);
    note(now(), worker->number, "leave %" PRId64 " %d", hold->token, waits);
    if (hold->leases != NULL) status = zkl_hold_release(hold->leases);
    else if (waits) status = zkl_release(hold->lock);
    else if (how == 0) status = zkl_release_nowait(hold->lock);
    else zkl_lock_free(hold->lock);
    note(now(), worker->number, "left %" PRId64 " %d", hold->token, status);
    if (uses_new_handle) zkl_lock_free(hold->lock);
}

static void use_hold(struct worker *worker, const struct hold *hold)
{
    uint64_t steps = 1 + random_below(worker, 6), longest = random_below(worker, 12) == 0 ? 400 : 15;
    for (uint64_t step = 0; step < steps; step++) {
        /* Some programs continue although they must not. The store rejects their writes. */
        int is_careless = random_below(worker, 2) == 0;
        int is_held = check_hold(worker, hold);
        if (random_below(worker, 4) == 0) sleep_ms(random_below(worker, 30));
        if (hold->choice->writes_store && (is_held || is_careless)) write_to_store(worker, hold);
        sleep_ms(random_below(worker, longest));
    }
    check_hold(worker, hold);
}

static void *work(void *argument)
{
    static const int64_t limits[] = {0, 100, 500, 2000, 5000, -1};
    struct worker *worker = argument;
    struct hold hold;
    worker->store = connect_store();
    while (!is_final) {
        const struct lock_choice *choice = &choices[random_below(worker, (uint64_t)choice_count)];
        if (acquire(worker, choice, limits[random_below(worker, 6)], &hold) == ZKL_OK) {
            use_hold(worker, &hold);
            release_hold(worker, &hold);
        }
        sleep_ms(random_below(worker, 20));
    }
    for (int i = 0; i < choice_count; i++) {
        if (acquire(worker, &choices[((uint32_t)i + worker->number) % (uint32_t)choice_count], FINAL_LIMIT_MS, &hold) ==
            ZKL_OK) {
            check_hold(worker, &hold);
            if (hold.choice->writes_store) write_to_store(worker, &hold);
            release_hold(worker, &hold);
        }
    }
    close(worker->store);
    return NULL;
}

static void add_lock_choice(struct lock_choice choice)
{
    if (choice_count == MAX_CHOICES) abort();
    choices[choice_count++] = choice;
}

static void make_lock_choice(const char *kind, const char *path)
{
    zkl_lock *lock = NULL, *other = NULL;
    zkl_semaphore *semaphore = NULL;
    int32_t status;
    if (strcmp(kind, "mutex") == 0) {
        status = zkl_mutex_new(client, path, &lock);
        add_lock_choice((struct lock_choice){
            .path = path, .exclusion = "exclusive", .lock = lock, .allows_new_handle = 1, .writes_store = 1});
    } else if (strcmp(kind, "rw") == 0) {
        status = zkl_rwlock_new(client, path, &lock, &other);
        add_lock_choice((struct lock_choice){.path = path, .exclusion = "shared", .lock = lock});
        add_lock_choice((struct lock_choice){.path = path, .exclusion = "exclusive", .lock = other, .writes_store = 1});
    } else if (strncmp(kind, "semaphore", 9) == 0) {
        char *exclusion = NULL;
        status = zkl_semaphore_new(client, path, atoi(kind + 9), &semaphore);
        if (asprintf(&exclusion, "leases:%s", kind + 9) < 0) abort();
        add_lock_choice((struct lock_choice){.path = path, .exclusion = exclusion, .semaphore = semaphore});
    } else {
        zkl_lock *locks[8];
        size_t count = 0;
        char *paths = strdup(path), *one;
        for (char *rest = paths; (one = strsep(&rest, "+")) != NULL && count < 8;) {
            if (zkl_mutex_new(client, one, &locks[count++]) != ZKL_OK) abort();
        }
        free(paths);
        status = zkl_multi_new(locks, count, &lock);
        add_lock_choice((struct lock_choice){.path = path, .exclusion = "exclusive", .lock = lock, .writes_store = 1});
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

/* Waits for a command. In the meantime, replaces the server list of the client when a command requires it. */
static void await(const char *word)
{
    char line[1024];
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strcmp(line, word) == 0) return;
        if (strncmp(line, "servers ", 8) != 0 || zkl_client_set_servers(client, line + 8) != ZKL_OK) break;
    }
    _exit(0);
}

static void report(const char *word)
{
    puts(word);
    fflush(stdout);
}

int main(int count, char **arguments)
{
    if (count != 9) return 2;
    store_address = arguments[2];
    int timeout_ms = atoi(arguments[5]), threads = atoi(arguments[7]);
    trace = open(arguments[6], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    zkl_config *config = zkl_config_new();
    zkl_config_set_session_timeout_ms(config, timeout_ms);
    zkl_config_set_connect_timeout_ms(config, 60000);
    zkl_config_set_event_callback(config, on_event, NULL, NULL);
    note(now(), 0, "begin %d 1", timeout_ms);
    if (zkl_config_load(config, arguments[8]) != ZKL_OK || zkl_client_new(arguments[1], config, &client) != ZKL_OK) {
        fprintf(stderr, "%s\n", zkl_last_error_message());
        return 1;
    }
    zkl_config_free(config);
    for (char *rest = arguments[3], *lock; (lock = strsep(&rest, ",")) != NULL;) {
        const char *kind = strsep(&lock, ":");
        make_lock_choice(kind, lock);
    }
    report("ready");

    struct worker *workers = calloc((size_t)threads, sizeof *workers);
    for (int i = 0; i < threads; i++) {
        workers[i].number = (uint32_t)i + 1;
        workers[i].rng_state = strtoul(arguments[4], NULL, 10) * 1000 + (unsigned)i;
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    await("final");
    is_final = 1;
    for (int i = 0; i < threads; i++) pthread_join(workers[i].thread, NULL);
    free(workers);
    report("idle");
    await("end");
    zkl_client_free(client);
    note(now(), 0, "end %u", library_threads());
    return 0;
}
