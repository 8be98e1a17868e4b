/* Helpers of the C tests. Each test is a program: argv[1] is the address of a ZooKeeper server. The program exits with 0 if
 * all checks hold. The first check that fails ends the program. */
#ifndef CHECK_H
#define CHECK_H

#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <zklock.h>

#define CHECK(condition)                                                                                                       \
    do {                                                                                                                       \
        if (!(condition)) fail(__FILE__, __LINE__, #condition);                                                                \
    } while (0)

/* Checks that the call returns this status. A failed call must set the error message; a successful call must not change
 * it. */
#define EXPECT(expected, call)                                                                                                 \
    do {                                                                                                                       \
        char before_[1024];                                                                                                    \
        snprintf(before_, sizeof before_, "%s", zkl_last_error_message());                                                     \
        zkl_status status_ = (call);                                                                                           \
        if (status_ != (expected)) fail_status(__FILE__, __LINE__, #call, (expected), status_);                                \
        CHECK(status_ == ZKL_OK ? strcmp(before_, zkl_last_error_message()) == 0 : *zkl_last_error_message() != '\0');         \
    } while (0)

/* Checks that the statement does not change the last error message. */
#define EXPECT_MESSAGE_UNCHANGED(statement)                                                                                    \
    do {                                                                                                                       \
        char before_[1024];                                                                                                    \
        snprintf(before_, sizeof before_, "%s", zkl_last_error_message());                                                     \
        statement;                                                                                                             \
        CHECK(strcmp(before_, zkl_last_error_message()) == 0);                                                                 \
    } while (0)

#define OK(call) EXPECT(ZKL_OK, call)

/* Checks that a safety predicate fails: it returns 0, and the error message contains this text. */
#define EXPECT_NOT_SAFE(call, text)                                                                                            \
    do {                                                                                                                       \
        CHECK((call) == 0);                                                                                                    \
        EXPECT_MESSAGE(text);                                                                                                  \
    } while (0)

/* Checks that the last error message contains this text. */
#define EXPECT_MESSAGE(text) CHECK(strstr(zkl_last_error_message(), (text)) != NULL)

#define RUN(test)                                                                                                              \
    do {                                                                                                                       \
        fprintf(stderr, "%s\n", #test);                                                                                        \
        test();                                                                                                                \
    } while (0)

/* The time limit of an acquire that must fail with TIMEOUT. If the server owes an answer at the deadline, the acquire fails with
 * CONNECTION. The limit is therefore longer than the pauses of a server on a loaded machine. */
enum { LIMIT_MS = 1000 };

static const char *servers;

static inline void fail(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: %s does not hold; last error: \"%s\"\n", file, line, what, zkl_last_error_message());
    _exit(1);
}

static inline void fail_status(const char *file, int line, const char *call, zkl_status expected, zkl_status got)
{
    fprintf(stderr, "%s:%d: %s is %d (%s), not %d (%s); last error: \"%s\"\n", file, line, call, (int)got,
            zkl_strerror(got), (int)expected, zkl_strerror(expected), zkl_last_error_message());
    _exit(1);
}

/* Begins a test with this number of arguments. A timer ends the test if it hangs. */
static inline void begin(int argc, char **argv, int arguments)
{
    CHECK(argc == arguments + 1);
    servers = argv[1];
    alarm(240);
}

static inline int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static inline void sleep_ms(int ms)
{
    struct timespec pause = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&pause, NULL);
}

/* The tolerance for late returns: slack() of tests/support. It depends on the tool that the program runs under. */
static inline int64_t slack_ms(void)
{
    const char *slack = getenv("SLACK_MS");
    return slack == NULL ? 1000 : atoll(slack);
}

/* Whether the program runs without valgrind and without sanitizers, which make it many times slower. */
static inline int runs_plain(void)
{
    const char *under = getenv("UNDER");
    return under == NULL || strcmp(under, "plain") == 0;
}

static inline zkl_client *new_client(void)
{
    zkl_client *client = NULL;
    OK(zkl_client_new(servers, NULL, &client));
    CHECK(client != NULL);
    return client;
}

static inline zkl_lock *new_mutex(zkl_client *client, const char *path)
{
    zkl_lock *lock = NULL;
    OK(zkl_mutex_new(client, path, &lock));
    CHECK(lock != NULL);
    return lock;
}

static inline zkl_lock *new_semaphore_mutex(zkl_client *client, const char *path)
{
    zkl_lock *lock = NULL;
    OK(zkl_semaphore_mutex_new(client, path, &lock));
    CHECK(lock != NULL);
    return lock;
}

static inline zkl_lock *new_multi(zkl_lock *one, zkl_lock *two)
{
    zkl_lock *const locks[] = {one, two};
    zkl_lock *lock = NULL;
    OK(zkl_multi_new(locks, 2, &lock));
    CHECK(lock != NULL && lock != one && lock != two);
    return lock;
}

static inline zkl_semaphore *new_semaphore(zkl_client *client, const char *path, int32_t max_leases)
{
    zkl_semaphore *semaphore = NULL;
    OK(zkl_semaphore_new(client, path, max_leases, &semaphore));
    CHECK(semaphore != NULL);
    return semaphore;
}

/* Acquires a lock for an owner (ZKL_OWNER_NEW, ZKL_OWNER_THREAD or a number), and returns the hold. */
static inline zkl_hold *acquire_hold(zkl_lock *lock, uint64_t owner)
{
    zkl_hold *hold = NULL;
    OK(zkl_hold_acquire(lock, owner, 60000, &hold));
    CHECK(hold != NULL);
    return hold;
}

/* Returns the hold of an operation that has ended with ZKL_OK, and frees the operation. */
static inline zkl_hold *take_hold(zkl_op *op)
{
    zkl_hold *hold = NULL;
    OK(zkl_op_hold(op, &hold));
    zkl_op_free(op);
    CHECK(hold != NULL);
    return hold;
}

/* Returns the state of a hold, or a negative status. */
static inline int32_t hold_state(const zkl_hold *hold)
{
    zkl_hold_info info = {.size = sizeof info};
    zkl_status status = zkl_hold_view(hold, &info);
    return status == ZKL_OK ? info.state : status;
}

static inline zkl_status hold_token(const zkl_hold *hold, int64_t *token_out)
{
    zkl_hold_info info = {.size = sizeof info};
    zkl_status status = zkl_hold_view(hold, &info);
    if (status == ZKL_OK) *token_out = info.token;
    return status;
}

static inline zkl_status hold_remaining(const zkl_hold *hold, int64_t *remaining_ms_out)
{
    zkl_hold_info info = {.size = sizeof info};
    zkl_status status = zkl_hold_view(hold, &info);
    if (status == ZKL_OK) *remaining_ms_out = info.remaining_ms;
    return status;
}

/* Waits until the condition holds. Most conditions ask a server, so the checks of a long wait become rarer. */
#define AWAIT(condition)                                                                                                       \
    do {                                                                                                                       \
        int64_t started_ = now_ms();                                                                                           \
        while (!(condition)) {                                                                                                 \
            int64_t waited_ = now_ms() - started_;                                                                             \
            if (waited_ >= 60000) fail(__FILE__, __LINE__, #condition);                                                        \
            sleep_ms(waited_ < 8 ? 2 : waited_ < 160 ? (int)waited_ / 4 : 40);                                                 \
        }                                                                                                                      \
    } while (0)

/* Returns a path that no other test and no other process uses. All these paths have the same length. */
static inline const char *fresh_path(void)
{
    static char path[64];
    static int count;
    snprintf(path, sizeof path, "/c/%07ld-%04d", (long)getpid(), count++);
    return path;
}

static inline void count_participant(void *user, const zkl_participant *participant)
{
    (void)participant;
    ++*(int *)user;
}

static inline void count_wait(void *user, const zkl_wait *wait)
{
    (void)wait;
    ++*(int *)user;
}

static inline int participants(zkl_lock *lock)
{
    int count = 0;
    OK(zkl_participants(lock, count_participant, &count));
    return count;
}

static inline void await_participants(zkl_lock *lock, int count)
{
    AWAIT(participants(lock) == count);
}

static inline int queue_length(zkl_lock *lock)
{
    int count = 0;
    OK(zkl_queue(lock, count_participant, &count));
    return count;
}

static inline int semaphore_participants(zkl_semaphore *semaphore)
{
    int count = 0;
    OK(zkl_semaphore_participants(semaphore, count_participant, &count));
    return count;
}

/* A call on another thread, and its status. */
struct call {
    pthread_t thread;
    zkl_status (*function)(zkl_lock *);
    zkl_lock *lock;
    zkl_status status;
    char message[256];
    int has_ended;
};

static inline void *run_call(void *argument)
{
    struct call *call = argument;
    call->status = call->function(call->lock);
    snprintf(call->message, sizeof call->message, "%s", zkl_last_error_message());
    __atomic_store_n(&call->has_ended, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static inline void start_call(struct call *call, zkl_status (*function)(zkl_lock *), zkl_lock *lock)
{
    memset(call, 0, sizeof *call);
    call->function = function;
    call->lock = lock;
    CHECK(pthread_create(&call->thread, NULL, run_call, call) == 0);
}

static inline zkl_status end_call(struct call *call)
{
    CHECK(pthread_join(call->thread, NULL) == 0);
    return call->status;
}

/* Returns the status of the call on a new thread. */
static inline zkl_status on_new_thread(zkl_status (*function)(zkl_lock *), zkl_lock *lock)
{
    struct call call;
    start_call(&call, function, lock);
    return end_call(&call);
}

static inline zkl_status try_acquire(zkl_lock *lock)
{
    return zkl_acquire_timeout(lock, 0);
}

static inline zkl_status try_acquire_and_release(zkl_lock *lock)
{
    zkl_status status = try_acquire(lock);
    return status == ZKL_OK ? zkl_release(lock) : status;
}

static inline zkl_status acquire_in_time(zkl_lock *lock)
{
    return zkl_acquire_timeout(lock, 60000);
}

static inline zkl_status acquire_and_release(zkl_lock *lock)
{
    zkl_status status = acquire_in_time(lock);
    return status == ZKL_OK ? zkl_release(lock) : status;
}

static inline int32_t held_by_thread(zkl_lock *lock)
{
    return zkl_is_held(lock);
}

/* The callbacks may set the last error message themselves. */
static inline int32_t dispatch(zkl_client *client)
{
    int32_t count = -7;
    CHECK(zkl_client_dispatch_events(client, &count) == ZKL_OK && count >= 0);
    return count;
}

static inline int32_t is_valid(zkl_client *client, const char *path, int64_t token)
{
    int32_t valid = -7;
    OK(zkl_fence_check(client, path, token, &valid));
    CHECK(valid == 0 || valid == 1);
    return valid;
}

static inline bool under_valgrind(void)
{
    const char *preloaded = getenv("LD_PRELOAD");
    return preloaded != NULL && strstr(preloaded, "vgpreload") != NULL;
}

/* A thread that holds a lock until the test stops it. */
struct holder {
    pthread_t thread;
    zkl_lock *lock;
    int stage;
};

static inline void *run_holder(void *argument)
{
    struct holder *holder = argument;
    OK(acquire_in_time(holder->lock));
    __atomic_store_n(&holder->stage, 1, __ATOMIC_SEQ_CST);
    AWAIT(__atomic_load_n(&holder->stage, __ATOMIC_SEQ_CST) == 2);
    OK(zkl_release(holder->lock));
    return NULL;
}

static inline void start_holder(struct holder *holder, zkl_lock *lock)
{
    holder->lock = lock;
    holder->stage = 0;
    CHECK(pthread_create(&holder->thread, NULL, run_holder, holder) == 0);
    AWAIT(__atomic_load_n(&holder->stage, __ATOMIC_SEQ_CST) == 1);
}

static inline void end_holder(struct holder *holder)
{
    __atomic_store_n(&holder->stage, 2, __ATOMIC_SEQ_CST);
    CHECK(pthread_join(holder->thread, NULL) == 0);
}

#endif
