/* Measures the memory, time and threads that many locks, waiters or clients of zklock need. Each run is a process that prints
 * one line of JSON.
 *
 *     scale ADDRESS held COUNT                  COUNT locks of different paths, held by one client
 *     scale ADDRESS waiting COUNT PATHS         COUNT operations that wait for the locks of PATHS paths, on one client
 *     scale ADDRESS waiters COUNT CLIENTS       COUNT operations that wait for one lock, on CLIENTS clients; each then gets it
 *     scale ADDRESS clients COUNT               COUNT clients in one process, each of which acquires a lock once
 *     scale ADDRESS start-up COUNT              creates and frees a client COUNT times
 *     scale ADDRESS tls COUNT WINDOWS TLS_ADDRESS OPTIONS
 *                                               COUNT connects, a tenth as many reconnects with an acquire, and WINDOWS times COUNT acquires, each
 *                                               in plain text and with TLS; the windows of both alternate; OPTIONS is a file
 *
 * Memory is in bytes: allocated (heap) and resident (rss), as the difference to the start of the step. cpu is the processor
 * time of the whole process. Times are in seconds. */

#define _GNU_SOURCE
#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <zklock.h>

static const char *address;

static double clock_now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* The resources that the process has used until now, or between two times. */
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

static usage used_since(usage since) {
    usage now = used();
    return (usage){now.seconds - since.seconds, now.cpu - since.cpu, now.heap - since.heap, now.rss - since.rss};
}

static usage sum_of(usage a, usage b) {
    return (usage){a.seconds + b.seconds, a.cpu + b.cpu, a.heap + b.heap, a.rss + b.rss};
}

/* Prints one of the steps at the beginning of the answer. */
static void print_usage(const char *name, usage used) {
    static int is_first = 1;
    printf("%s{\"step\":\"%s\",\"seconds\":%.4f,\"cpu\":%.4f,\"heap\":%lld,\"rss\":%lld}", is_first ? "{\"steps\":[" : ",", name,
           used.seconds, used.cpu, used.heap, used.rss);
    is_first = 0;
}

static void print_step(const char *name, usage since) {
    print_usage(name, used_since(since));
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

/* Ends the program with an error. Messages contain no control characters. Characters that JSON would have to escape are
 * replaced by a single quote. */
static void must(const char *what, zkl_status status) {
    if (status == ZKL_OK) return;
    /* Discard the steps that were printed before. */
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

static zkl_client *connected_with(const char *servers, const char *options) {
    zkl_client *client;
    zkl_config *config = zkl_config_new();
    zkl_config_set_session_timeout_ms(config, 60000);
    if (options) must("options", zkl_config_load(config, options));
    must("connect", zkl_client_new(servers, config, &client));
    zkl_config_free(config);
    return client;
}

static zkl_client *connected(void) {
    return connected_with(address, NULL);
}

static zkl_lock *mutex(zkl_client *client, const char *name, size_t number) {
    zkl_lock *lock;
    char path[128];
    snprintf(path, sizeof path, "/scale/%s-%zu", name, number);
    must("mutex", zkl_mutex_new(client, path, &lock));
    return lock;
}

/* Counts the operations that are in the queue and watch the node ahead. */
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
    zkl_hold **holds = allocated(count, sizeof *holds);
    zkl_client *client = connected();
    usage before = used();
    for (size_t i = 0; i < count; i++) locks[i] = mutex(client, "held", i);
    for (size_t i = 0; i < count; i++) must("start", zkl_acquire_start(locks[i], i + 1, -1, &ops[i]));
    for (size_t i = 0; i < count; i++) {
        must("acquire", zkl_op_wait(ops[i], -1));
        must("take", zkl_op_hold(ops[i], &holds[i]));
        zkl_op_free(ops[i]);
    }
    print_step("acquire", before);
    before = used();
    sleep(2);
    print_step("hold for two seconds", before);
    before = used();
    int threads = thread_count();
    for (size_t i = 0; i < count; i++) must("release", zkl_hold_release_nowait(holds[i]));
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

/* The operations of one client get the lock in the order in which they started. */
static void *take_turns(void *argument) {
    member *self = argument;
    for (size_t i = 0; i < self->count; i++) {
        zkl_hold *hold;
        must("wait", zkl_op_wait(self->ops[i], -1));
        must("take", zkl_op_hold(self->ops[i], &hold));
        must("release", zkl_hold_release_nowait(hold));
        zkl_op_free(self->ops[i]);
    }
    return NULL;
}

static void run_many_waiters(size_t count, size_t clients) {
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

static void run_cycles(zkl_lock *lock, size_t count) {
    for (size_t i = 0; i < count; i++) {
        must("acquire", zkl_acquire(lock));
        must("release", zkl_release(lock));
    }
}

/* Ends the connections of all clients in this process, as a fault of the network does. */
static void cut_connections(void) {
    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_in peer;
        socklen_t length = sizeof peer;
        if (getpeername(fd, (struct sockaddr *)&peer, &length) == 0 && peer.sin_family == AF_INET) shutdown(fd, SHUT_RDWR);
    }
}

static void tls(size_t count, size_t windows, const char *tls_address, const char *options) {
    struct {
        const char *address, *options, *connect, *reconnect, *cycles;
        zkl_lock *lock;
        usage used;
    } sides[2] = {{address, NULL, "connect in plain text", "reconnect in plain text (a tenth as often)", "cycles in plain text", NULL, {0}},
                  {tls_address, options, "connect with TLS", "reconnect with TLS (a tenth as often)", "cycles with TLS", NULL, {0}}};
    zkl_client **clients = allocated(count, sizeof *clients);
    for (size_t side = 0; side < 2; side++) {
        /* The first client reads what the process reads only once. */
        zkl_client_free(connected_with(sides[side].address, sides[side].options));
        usage before = used();
        for (size_t i = 0; i < count; i++) clients[i] = connected_with(sides[side].address, sides[side].options);
        print_step(sides[side].connect, before);
        for (size_t i = 0; i < count; i++) zkl_client_free(clients[i]);
    }
    for (size_t side = 0; side < 2; side++) {
        zkl_client *client = connected_with(sides[side].address, sides[side].options);
        sides[side].lock = mutex(client, "tls", side);
        run_cycles(sides[side].lock, count);
        usage sum = {0};
        for (size_t i = 0; i < count / 10 + 1; i++) {
            /* A client whose connection was lost within one second pauses before it reconnects. */
            usleep(1100000);
            usage before = used();
            cut_connections();
            run_cycles(sides[side].lock, 1);
            sum = sum_of(sum, used_since(before));
        }
        print_usage(sides[side].reconnect, sum);
        if (side == 0) zkl_lock_free(sides[side].lock), zkl_client_free(client);
    }
    sides[0].lock = mutex(connected(), "tls", 0);
    run_cycles(sides[0].lock, count);
    for (size_t window = 0; window < 2 * windows; window++) {
        size_t side = (window + window / 2) % 2;
        usage before = used();
        run_cycles(sides[side].lock, count);
        sides[side].used = sum_of(sides[side].used, used_since(before));
    }
    for (size_t side = 0; side < 2; side++) print_usage(sides[side].cycles, sides[side].used);
    print_end(thread_count());
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
    else if (strcmp(what, "waiters") == 0) run_many_waiters(count, parts);
    else if (strcmp(what, "clients") == 0) many_clients(count);
    else if (strcmp(what, "start-up") == 0) start_up(count);
    else if (strcmp(what, "tls") == 0 && argc == 7) tls(count, parts, argv[5], argv[6]);
    else return 2;
    fflush(stdout);
    /* The session ends later, and the run does not wait for it. */
    _exit(0);
}
