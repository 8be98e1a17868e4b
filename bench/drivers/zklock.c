/* zklock from C as a driver of the benchmark. bench/src/driver.rs describes the commands and answers.
 *
 *     zklock VARIANT
 *
 * Variants: confirmed (one client, and a thread and a lock handle for each worker), nowait (the same with
 * zkl_release_nowait), sessions (a client for each worker), local (confirmed, with local hand-over). */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <zklock.h>

#define SECOND INT64_C(1000000000)
/* The maximum number of consecutive local hand-overs of a lock. */
#define MAX_PASSES 64

/* One acquire and its release: the time of each call and of its return. */
typedef struct {
    int64_t called, acquired, releasing, released;
} stamp;

typedef struct {
    pthread_t thread;
    zkl_client *client;
    zkl_lock *lock;
    stamp *stamps;
    size_t count, room;
    /* The error message, or empty. */
    char error[256];
} worker;

typedef zkl_status release_fn(zkl_lock *lock);
typedef zkl_status set_local_handover_fn(zkl_lock *lock, int32_t max_passes);

static char address[512];
static release_fn *release = zkl_release;
static set_local_handover_fn *set_local_handover;
static int has_sessions;

static worker *workers;
static size_t worker_count;
static int64_t start, end, hold;

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * SECOND + time.tv_nsec;
}

static void sleep_until(int64_t when) {
    struct timespec time = {when / SECOND, when % SECOND};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) != 0) {
    }
}

static int failed(worker *self, const char *what, zkl_status status) {
    if (status == ZKL_OK) return 0;
    snprintf(self->error, sizeof self->error, "%s: %s: %s", what, zkl_strerror(status), zkl_last_error_message());
    return 1;
}

static int cycle(worker *self, stamp *one) {
    one->called = now();
    if (failed(self, "acquire", zkl_acquire(self->lock))) return 0;
    one->acquired = now();
    if (hold > 0) sleep_until(one->acquired + hold);
    one->releasing = now();
    if (failed(self, "release", release(self->lock))) return 0;
    one->released = now();
    return 1;
}

static void keep(worker *self, stamp one) {
    if (self->count == self->room) {
        self->room = self->room ? 2 * self->room : 4096;
        self->stamps = realloc(self->stamps, self->room * sizeof *self->stamps);
        if (!self->stamps) abort();
    }
    self->stamps[self->count++] = one;
}

/* The thread of a worker. It starts when the window is known, before the window begins. */
static void *work(void *argument) {
    worker *self = argument;
    stamp one;
    sleep_until(start);
    do {
        if (!cycle(self, &one)) break;
        keep(self, one);
    } while (one.released < end);
    return NULL;
}

static void connect_worker(worker *self) {
    zkl_config *config = zkl_config_new();
    zkl_config_set_session_timeout_ms(config, 60000);
    failed(self, "connect", zkl_client_new(address, config, &self->client));
    zkl_config_free(config);
}

/* Use each path once, so that everything that is created only once exists. */
static void prepare_worker(worker *self, size_t index, const char *base, size_t paths) {
    char path[512];
    snprintf(path, sizeof path, "%s-%zu", base, index % paths);
    self->client = workers[0].client;
    if (index == 0 || has_sessions) connect_worker(self);
    if (self->error[0] || failed(self, "mutex", zkl_mutex_new(self->client, path, &self->lock))) return;
    if (set_local_handover && failed(self, "local hand-over", set_local_handover(self->lock, MAX_PASSES))) return;
    stamp unused;
    if (index < paths) cycle(self, &unused);
}

static const char *first_error(void) {
    for (size_t i = 0; i < worker_count; i++)
        if (workers[i].error[0]) return workers[i].error;
    return NULL;
}

static void disconnect(void) {
    for (size_t i = 0; i < worker_count; i++) zkl_lock_free(workers[i].lock);
    for (size_t i = 0; i < worker_count; i++)
        if (i == 0 || has_sessions) zkl_client_free(workers[i].client);
    for (size_t i = 0; i < worker_count; i++) free(workers[i].stamps);
    free(workers);
    workers = NULL;
    worker_count = 0;
}

/* Messages contain no control characters. Characters that JSON would have to escape are replaced by a single quote. */
static void answer_error(const char *error) {
    printf("{\"error\":\"");
    for (; *error; error++) putchar(*error == '"' || *error == '\\' ? '\'' : *error);
    printf("\"}\n");
}

static void answer_stamps(void) {
    const char *separator = "";
    printf("{\"stamps\":[");
    for (size_t i = 0; i < worker_count; i++) {
        for (size_t k = 0; k < workers[i].count; k++) {
            stamp *one = &workers[i].stamps[k];
            printf("%s%zu,%lld,%lld,%lld,%lld", separator, i, (long long)one->called, (long long)one->acquired,
                   (long long)one->releasing, (long long)one->released);
            separator = ",";
        }
    }
    printf("]}\n");
}

static void prepare(const char *base, size_t count, size_t paths, int64_t hold_us) {
    disconnect();
    hold = hold_us * 1000;
    workers = calloc(count, sizeof *workers);
    if (!workers) abort();
    worker_count = count;
    for (size_t i = 0; i < count && !first_error(); i++) prepare_worker(&workers[i], i, base, paths);
    const char *error = first_error();
    if (error) answer_error(error);
    else printf("{}\n");
}

static void go(void) {
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 * 1024);
    size_t started = 0;
    while (started < worker_count && pthread_create(&workers[started].thread, &small, work, &workers[started]) == 0) started++;
    for (size_t i = 0; i < started; i++) pthread_join(workers[i].thread, NULL);
    const char *error = started < worker_count ? "no more threads" : first_error();
    if (error) answer_error(error);
    else answer_stamps();
    disconnect();
}

static int choose(const char *variant) {
    if (strcmp(variant, "confirmed") == 0) return 1;
    if (strcmp(variant, "nowait") == 0) {
        release = zkl_release_nowait;
        return 1;
    }
    if (strcmp(variant, "sessions") == 0) {
        has_sessions = 1;
        return 1;
    }
    if (strcmp(variant, "local") == 0) {
        *(void **)&set_local_handover = dlsym(RTLD_DEFAULT, "zkl_mutex_set_local_handover");
        if (!set_local_handover) fprintf(stderr, "this libzklock.so has no local hand-over\n");
        return set_local_handover != NULL;
    }
    fprintf(stderr, "no such variant: %s\n", variant);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 2 || !choose(argv[1])) return 2;
    char line[2048], base[512];
    size_t count, paths;
    long long first, second;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "prepare %511s %511s %zu %zu %lld", address, base, &count, &paths, &first) == 5) {
            prepare(base, count, paths, first);
        } else if (sscanf(line, "go %lld %lld", &first, &second) == 2) {
            start = first;
            end = second;
            go();
        } else {
            answer_error("no such command");
        }
        fflush(stdout);
    }
    disconnect();
    return 0;
}
