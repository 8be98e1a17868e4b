/* What zklock needs where there is much of it: memory, time, threads. Each run is a process, which prints one line of JSON.
 *
 *     scale ADDRESS held COUNT                  so many locks of as many paths, held by one client
 *     scale ADDRESS waiting COUNT PATHS         so many operations that wait for locks of so many paths, on one client
 *     scale ADDRESS crowd COUNT CLIENTS         so many that wait for one lock, on so many clients; then each gets it in turn
 *     scale ADDRESS clients COUNT               so many clients in one process, each with a lock that it takes once
 *     scale ADDRESS start-up COUNT              a client that is made and freed, so many times
 *
 * Memory is what was allocated (heap) and what is resident (rss), in bytes, as much as came on top of what there was before; cpu is that
 * of the whole process. Times are seconds.
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <zklock.h>

static const char *address;

static double clock_now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* What the process has used up to now, or between two moments. */
typedef struct {
    double seconds, cpu;
    long long heap, rss;
} usage;

static usage used(void) {
    struct mallinfo2 heap = mallinfo2();
    long long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    if (statm) {
        if (fscanf(statm, "%*s %lld", &pages) != 1) pages = 0;
        fclose(statm);
    }
    return (usage){clock_now(CLOCK_MONOTONIC), clock_now(CLOCK_PROCESS_CPUTIME_ID), (long long)(heap.uordblks + heap.hblkhd),
                   pages * sysconf(_SC_PAGESIZE)};
}

/* One more of the steps that the answer begins with. */
static void print_step(const char *name, usage since) {
    static int is_first = 1;
    usage now = used();
    printf("%s{\"step\":\"%s\",\"seconds\":%.4f,\"cpu\":%.4f,\"heap\":%lld,\"rss\":%lld}", is_first ? "{\"steps\":[" : ",", name, now.seconds - since.seconds,
           now.cpu - since.cpu, now.heap - since.heap, now.rss - since.rss);
    is_first = 0;
}

static void print_end(int threads) {
    printf("],\"threads\":%d}\n", threads);
}

static int thread_count(void) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry = tasks ? readdir(tasks) : NULL; entry; entry = readdir(tasks)) count += entry->d_name[0] != '.';
    if (tasks) closedir(tasks);
    return count;
}

/* A message has no control characters; what JSON would not take in it becomes a quote of the other kind. */
static void must(const char *what, zkl_status status) {
    if (status == ZKL_OK) return;
    /* Instead of what was done before. */
    __fpurge(stdout);
    printf("{\"error\":\"%s: ", what);
    for (const char *text = zkl_last_error_message(); *text; text++) putchar(*text == '"' || *text == '\\' ? '\'' : *text);
    printf("\"}\n");
    exit(1);
}

static void *allocated(size_t count, size_t size) {
    void *memory = calloc(count, size);
    if (!memory) abort();
    memset(memory, 0, count * size);
    return memory;
}

static zkl_client *connected(void) {
    zkl_client *client;
    zkl_config *config = zkl_config_new();
    zkl_config_set_session_timeout_ms(config, 60000);
    must("connect", zkl_client_new(address, config, &client));
    zkl_config_free(config);
    return client;
}

static zkl_lock *mutex(zkl_client *client, const char *name, size_t number) {
    zkl_lock *lock;
    char path[128];
    snprintf(path, sizeof path, "/scale/%s-%zu", name, number);
    must("mutex", zkl_mutex_new(client, path, &lock));
    return lock;
}

/* Counts those that stand in the queue and watch the one ahead. */
static void count_queued(void *count, const zkl_wait *wait) {
    if (wait->waits_for == ZKL_WAITS_FOR_NODE) ++*(size_t *)count;
}

static void wait_until_queued(zkl_lock **locks, size_t lock_count, size_t count) {
    for (;;) {
        size_t queued = 0;
        for (size_t i = 0; i < lock_count; i++) must("waiting", zkl_waiting(locks[i], count_queued, &queued));
        if (queued == count) return;
        usleep(5000);
    }
}

static void held(size_t count) {
    zkl_lock **locks = allocated(count, sizeof *locks);
    zkl_op **ops = allocated(count, sizeof *ops);
    zkl_client *client = connected();
    usage before = used();
    for (size_t i = 0; i < count; i++) locks[i] = mutex(client, "held", i);
    for (size_t i = 0; i < count; i++) must("start", zkl_acquire_start(locks[i], i + 1, -1, &ops[i]));
    for (size_t i = 0; i < count; i++) {
        must("acquire", zkl_op_wait(ops[i], -1));
        zkl_op_free(ops[i]);
    }
    print_step("acquire", before);
    before = used();
    sleep(2);
    print_step("hold for two seconds", before);
    before = used();
    int threads = thread_count();
    for (size_t i = 0; i < count; i++) must("release", zkl_release_nowait_as(locks[i], i + 1));
    zkl_client_free(client);
    print_step("release", before);
    print_end(threads);
}

static void waiting(size_t count, size_t paths) {
    zkl_lock **blockers = allocated(paths, sizeof *blockers), **locks = allocated(paths, sizeof *locks);
    zkl_op **ops = allocated(count, sizeof *ops);
    zkl_client *holder = connected(), *client = connected();
    for (size_t i = 0; i < paths; i++) {
        blockers[i] = mutex(holder, "waiting", i);
        must("hold", zkl_acquire(blockers[i]));
        locks[i] = mutex(client, "waiting", i);
    }
    usage before = used();
    for (size_t i = 0; i < count; i++) must("start", zkl_acquire_start(locks[i % paths], i + 1, -1, &ops[i]));
    wait_until_queued(locks, paths, count);
    print_step("queue", before);
    print_end(thread_count());
}

typedef struct {
    pthread_t thread;
    zkl_client *client;
    zkl_lock *lock;
    zkl_op **ops;
    size_t count;
} member;

/* Those of one client get the lock in the order in which they began. */
static void *take_turns(void *argument) {
    member *self = argument;
    for (size_t i = 0; i < self->count; i++) {
        must("wait", zkl_op_wait(self->ops[i], -1));
        must("release", zkl_release_nowait_as(self->lock, i + 1));
        zkl_op_free(self->ops[i]);
    }
    return NULL;
}

static void crowd(size_t count, size_t clients) {
    member *members = allocated(clients, sizeof *members);
    zkl_lock **locks = allocated(clients, sizeof *locks);
    zkl_client *holder = connected();
    zkl_lock *first = mutex(holder, "crowd", 0);
    must("hold", zkl_acquire(first));
    for (size_t i = 0; i < clients; i++) {
        member *one = &members[i];
        one->client = connected();
        one->lock = locks[i] = mutex(one->client, "crowd", 0);
        one->count = count / clients;
        one->ops = allocated(one->count, sizeof *one->ops);
    }
    usage before = used();
    for (size_t i = 0; i < count / clients * clients; i++) {
        member *one = &members[i % clients];
        must("start", zkl_acquire_start(one->lock, i / clients + 1, -1, &one->ops[i / clients]));
    }
    wait_until_queued(locks, clients, count / clients * clients);
    print_step("queue", before);
    before = used();
    for (size_t i = 0; i < clients; i++)
        if (pthread_create(&members[i].thread, NULL, take_turns, &members[i]) != 0) abort();
    must("release", zkl_release(first));
    for (size_t i = 0; i < clients; i++) pthread_join(members[i].thread, NULL);
    print_step("take turns", before);
    print_end(thread_count());
}

static void many_clients(size_t count) {
    zkl_client **clients = allocated(count, sizeof *clients);
    usage before = used();
    for (size_t i = 0; i < count; i++) clients[i] = connected();
    print_step("connect", before);
    int threads = thread_count();
    before = used();
    for (size_t i = 0; i < count; i++) {
        zkl_lock *lock = mutex(clients[i], "clients", i);
        must("acquire", zkl_acquire(lock));
        must("release", zkl_release(lock));
        zkl_lock_free(lock);
    }
    print_step("lock", before);
    before = used();
    sleep(2);
    print_step("two seconds of nothing", before);
    before = used();
    for (size_t i = 0; i < count; i++) zkl_client_free(clients[i]);
    print_step("free", before);
    print_end(threads);
}

static int ascending(const void *a, const void *b) {
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

static void start_up(size_t count) {
    double *times = allocated(count, sizeof *times);
    for (size_t i = 0; i < count; i++) {
        double begun = clock_now(CLOCK_MONOTONIC);
        zkl_client *client = connected();
        times[i] = clock_now(CLOCK_MONOTONIC) - begun;
        zkl_client_free(client);
    }
    qsort(times, count, sizeof *times, ascending);
    printf("{\"p50\":%.6f,\"p99\":%.6f}\n", times[count / 2], times[count * 99 / 100]);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    address = argv[1];
    const char *what = argv[2];
    size_t count = strtoul(argv[3], NULL, 10), parts = argc > 4 ? strtoul(argv[4], NULL, 10) : 1;
    if (strcmp(what, "held") == 0) held(count);
    else if (strcmp(what, "waiting") == 0) waiting(count, parts);
    else if (strcmp(what, "crowd") == 0) crowd(count, parts);
    else if (strcmp(what, "clients") == 0) many_clients(count);
    else if (strcmp(what, "start-up") == 0) start_up(count);
    else return 2;
    fflush(stdout);
    /* The session goes with the process, and nobody is to wait for that. */
    _exit(0);
}
