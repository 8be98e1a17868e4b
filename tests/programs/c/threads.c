/* The library's threads: they have names, block all signals, and end with the last client. Signals to the program do not
 * affect calls that wait. */
#include "check.h"

#include <dirent.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

static int threads_before, descriptors_before;

/* Calls `look` for each thread except the first, with the name of the thread and its mask of blocked signals. */
static int each_thread(void (*look)(const char *name, const char *blocked))
{
    char file[64], name[32], line[256], blocked[64] = "";
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        if (task->d_name[0] == '.' || atol(task->d_name) == (long)getpid()) continue;
        snprintf(file, sizeof file, "/proc/self/task/%.20s/status", task->d_name);
        FILE *status = fopen(file, "r");
        /* The thread may have ended. */
        if (status == NULL) continue;
        while (fgets(line, sizeof line, status) != NULL) {
            sscanf(line, "Name:\t%31s", name);
            sscanf(line, "SigBlk:\t%63s", blocked);
        }
        fclose(status);
        count++;
        if (look != NULL) look(name, blocked);
    }
    closedir(tasks);
    return count;
}

static int threads(void)
{
    return each_thread(NULL);
}

static int descriptors(void)
{
    DIR *directory = opendir("/proc/self/fd");
    int count = 0;
    CHECK(directory != NULL);
    while (readdir(directory) != NULL) count++;
    closedir(directory);
    return count;
}

static void nothing_is_left(void)
{
    AWAIT(threads() == threads_before);
    CHECK(descriptors() == descriptors_before);
}

static int io_threads, event_threads, other_threads;

static void look_at(const char *name, const char *blocked)
{
    io_threads += strcmp(name, "zkl-io") == 0;
    event_threads += strcmp(name, "zkl-events") == 0;
    other_threads += strncmp(name, "zkl-", 4) != 0;
    /* All signals are blocked, except those that cannot be blocked and the two of the C library. Valgrind changes the
     * mask. */
    uint64_t never = 1ULL << (SIGKILL - 1) | 1ULL << (SIGSTOP - 1) | 1ULL << 31 | 1ULL << 32;
    CHECK(under_valgrind() || (strtoull(blocked, NULL, 16) | never) == UINT64_MAX);
}

/* A thread sets its name when it first runs. */
static bool library_threads_have_names(void)
{
    io_threads = event_threads = other_threads = 0;
    each_thread(look_at);
    return io_threads == 1 && event_threads == 1 && other_threads == 0;
}

static void on_event(void *user, const zkl_event *event)
{
    (void)user;
    (void)event;
}

/* The library has one I/O thread and one event thread, with names and with all signals blocked. */
static void threads_have_names_and_take_no_signals(void)
{
    zkl_config *config = zkl_config_new();
    zkl_client *one, *two;
    OK(zkl_config_set_event_callback(config, on_event, NULL, NULL));
    OK(zkl_client_new(servers, config, &one));
    OK(zkl_client_new(servers, config, &two));
    zkl_config_free(config);
    AWAIT(library_threads_have_names());
    zkl_client_free(one);
    zkl_client_free(two);
    nothing_is_left();
}

/* Creating and freeing clients leaves no thread and no descriptor behind. */
static void clients_come_and_go(void)
{
    int rounds = runs_plain() ? 1000 : 10;
    for (int round = 0; round < rounds; round++) {
        zkl_client *client = new_client();
        zkl_client_free(client);
    }
    nothing_is_left();
}

/* A server that accepts connections and sends nothing. */
static int silent_server(char *address, size_t size)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof any;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(listener >= 0 && bind(listener, (struct sockaddr *)&any, length) == 0 && listen(listener, 8) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&any, &length) == 0);
    snprintf(address, size, "127.0.0.1:%d", ntohs(any.sin_port));
    return listener;
}

static void expect_no_connection(const char *where, int32_t timeout_ms)
{
    zkl_config *config = zkl_config_new();
    zkl_client *client = NULL;
    OK(zkl_config_set_connect_timeout_ms(config, timeout_ms));
    int64_t start = now_ms();
    EXPECT(ZKL_E_CONNECTION, zkl_client_new(where, config, &client));
    int64_t took = now_ms() - start;
    CHECK(took >= timeout_ms && took < timeout_ms + slack_ms());
    zkl_config_free(config);
}

/* A connection attempt that times out leaves no thread and no descriptor behind. */
static void a_connection_that_is_being_sought_leaves_nothing(void)
{
    char address[64];
    int listener = silent_server(address, sizeof address);
    expect_no_connection(address, 100);
    close(listener);
    nothing_is_left();
}

static atomic_bool resolver_hangs = true;
static atomic_int resolving;

/* Replaces the function of the C library. */
int getaddrinfo(const char *restrict name, const char *restrict service, const struct addrinfo *restrict hints,
                struct addrinfo **restrict found)
{
    (void)name;
    (void)service;
    (void)hints;
    (void)found;
    resolving++;
    while (resolver_hangs) sleep_ms(1);
    return EAI_NONAME;
}

static void look_at_resolver(const char *name, const char *blocked)
{
    look_at(name, blocked);
    CHECK(strcmp(name, "zkl-dns") == 0);
}

/* The library cannot end a resolver that hangs. The resolver has its own thread, for which no other thread waits. */
static void a_resolver_that_hangs_keeps_its_own_thread_only(void)
{
    for (int i = 0; i < 3; i++) expect_no_connection("zookeeper.invalid:2181", 50);
    AWAIT(threads() == threads_before + 1);
    CHECK(resolving == 1 && each_thread(look_at_resolver) == 1);
    resolver_hangs = false;
    nothing_is_left();
    expect_no_connection("zookeeper.invalid:2181", 50);
    nothing_is_left();
}

static atomic_int signals;

static void count_signal(int signal)
{
    (void)signal;
    signals++;
}

static void wait_exactly(zkl_lock *lock, int64_t ms)
{
    int64_t start = now_ms();
    zkl_status status = zkl_acquire_timeout(lock, ms);
    int64_t took = now_ms() - start;
    /* On a busy machine, the server may answer too late. */
    CHECK(status == ZKL_E_TIMEOUT || status == ZKL_E_CONNECTION);
    CHECK(took >= ms && took < ms + slack_ms());
}

/* Calls every function that blocks. */
static void use_all(void)
{
    zkl_client *client = new_client(), *other = new_client();
    const char *path = fresh_path();
    zkl_lock *lock = new_mutex(client, path), *same = new_mutex(other, path);
    OK(zkl_acquire(lock));
    wait_exactly(same, 300);
    struct call call;
    start_call(&call, zkl_acquire, same);
    await_participants(lock, 2);
    OK(zkl_release(lock));
    CHECK(end_call(&call) == ZKL_OK);
    zkl_lock *multi = new_multi(lock, new_mutex(client, fresh_path()));
    wait_exactly(multi, 100);
    zkl_lock_free(same);
    OK(zkl_acquire_timeout(multi, 60000));
    OK(zkl_release(multi));
    zkl_semaphore *semaphore = NULL;
    zkl_hold *leases = NULL, *more = NULL;
    const char *count = fresh_path();
    OK(zkl_semaphore_new_counted(client, fresh_path(), count, 2, &semaphore));
    OK(zkl_semaphore_acquire_timeout(semaphore, 2, -1, &leases));
    EXPECT(ZKL_E_TIMEOUT, zkl_semaphore_acquire_timeout(semaphore, 1, LIMIT_MS, &more));
    CHECK(semaphore_participants(semaphore) == 2);
    OK(zkl_hold_release(leases));
    int32_t value = 0;
    OK(zkl_shared_count_set(client, count, 3));
    OK(zkl_shared_count_get(client, count, &value));
    CHECK(value == 3);
    OK(zkl_revoke(client, "/nobody"));
    zkl_client_free(other);
    zkl_client_free(client);
}

static void *use_all_on_thread(void *unused)
{
    (void)unused;
    use_all();
    return NULL;
}

/* The smallest stack that the header allows is enough. */
static void threads_may_have_a_small_stack(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, 128 * 1024) == 0);
    CHECK(pthread_create(&thread, &attributes, use_all_on_thread, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0 && pthread_attr_destroy(&attributes) == 0);
    nothing_is_left();
}

/* Frequent signals do not affect any function that blocks. */
static void signals_do_not_disturb_waits(void)
{
    /* Without SA_RESTART, signals interrupt system calls. */
    struct sigaction action = {.sa_handler = count_signal};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    struct itimerspec often = {.it_value.tv_nsec = 1000000, .it_interval.tv_nsec = 1000000};
    timer_t timer;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    CHECK(timer_settime(timer, 0, &often, NULL) == 0);
    use_all();
    CHECK(timer_delete(timer) == 0);
    CHECK(signals > 100);
    nothing_is_left();
}

static void *nothing(void *argument)
{
    return argument;
}

/* Prevents this process from starting threads. The limit does not apply to root, so the process first becomes another user. Returns false if the
 * process can still start threads. */
static bool forbid_threads(void)
{
    const struct rlimit none = {0, 0};
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) return false;
    CHECK(setrlimit(RLIMIT_NPROC, &none) == 0);
    pthread_t thread;
    return pthread_create(&thread, NULL, nothing, NULL) != 0;
}

/* The library resolves each name on a separate thread. If this thread cannot start, the error says so. */
static void names_need_threads(void)
{
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        /* The I/O thread of the first client also serves the second client. */
        zkl_client *first = new_client(), *second = NULL;
        zkl_config *config = zkl_config_new();
        OK(zkl_config_set_connect_timeout_ms(config, 500));
        const char *port = strrchr(servers, ':');
        char name[32];
        CHECK(port != NULL && snprintf(name, sizeof name, "localhost%s", port) < (int)sizeof name);
        if (forbid_threads()) {
            EXPECT(ZKL_E_EXHAUSTED, zkl_client_new(name, config, &second));
            EXPECT_MESSAGE("its name cannot be resolved, because no thread can be started");
        } else {
            fprintf(stderr, "not tested: this process may start threads despite its limit\n");
        }
        zkl_config_free(config);
        zkl_client_free(first);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    RUN(names_need_threads);
    /* The threads and descriptors before the first call of the library. The sanitizers have their own threads. */
    threads_before = threads();
    descriptors_before = descriptors();
    RUN(threads_have_names_and_take_no_signals);
    RUN(a_connection_that_is_being_sought_leaves_nothing);
    RUN(a_resolver_that_hangs_keeps_its_own_thread_only);
    RUN(threads_may_have_a_small_stack);
    RUN(signals_do_not_disturb_waits);
    RUN(clients_come_and_go);
    return 0;
}
