/* Acquiring without blocking a thread: operations, their descriptors, and owners with numbers. */
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/wait.h>

enum { SOON = 60000 };

static zkl_client *client;

static zkl_op *start(zkl_lock *lock, uint64_t owner, int64_t timeout_ms)
{
    zkl_op *op = NULL;
    OK(zkl_acquire_start(lock, owner, timeout_ms, &op));
    CHECK(op != NULL);
    return op;
}

static zkl_op *start_leases(zkl_semaphore *semaphore, int32_t quantity, int64_t timeout_ms)
{
    zkl_op *op = NULL;
    OK(zkl_semaphore_acquire_start(semaphore, quantity, timeout_ms, &op));
    CHECK(op != NULL);
    return op;
}

static bool is_readable(int fd)
{
    struct pollfd poller = {fd, POLLIN, 0};
    CHECK(poll(&poller, 1, 0) >= 0);
    return (poller.revents & POLLIN) != 0;
}

/* Waits for the end of an operation with its descriptor only. */
static zkl_status end(zkl_op *op)
{
    struct pollfd poller = {zkl_op_fd(op), POLLIN, 0};
    CHECK(poller.fd >= 0);
    CHECK(poll(&poller, 1, SOON) == 1);
    zkl_status result = zkl_op_result(op);
    CHECK(result == zkl_op_result(op));
    return result;
}

/* Waits for the success of an operation, and takes its hold. */
static zkl_hold *succeed(zkl_op *op)
{
    OK(end(op));
    zkl_hold *hold = take_hold(op);
    CHECK(zkl_hold_is_held(hold) == 1);
    return hold;
}

static zkl_hold *acquire_as(zkl_lock *lock, uint64_t owner)
{
    return succeed(start(lock, owner, SOON));
}

/* A second client on the path, which lists the participants. */
struct second_lock {
    zkl_client *client;
    zkl_lock *lock;
};

static struct second_lock second_client_lock(const char *path)
{
    struct second_lock second_lock = {new_client(), NULL};
    second_lock.lock = new_mutex(second_lock.client, path);
    return second_lock;
}

static void free_second_lock(struct second_lock *second_lock)
{
    zkl_lock_free(second_lock->lock);
    zkl_client_free(second_lock->client);
}

/* An operation finishes without a waiting thread, and its descriptor stays readable. */
static void operation_completes_unattended_and_its_descriptor_stays_readable(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    OK(zkl_acquire(lock));
    zkl_op *op = start(lock, 7, -1);
    int fd = zkl_op_fd(op);
    CHECK(fd >= 0 && fd == zkl_op_fd(op));
    CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    CHECK(!is_readable(fd));
    EXPECT(ZKL_E_PENDING, zkl_op_result(op));
    EXPECT_MESSAGE("is still running");
    EXPECT(ZKL_E_PENDING, zkl_op_wait(op, 0));
    EXPECT_MESSAGE("is still running");
    EXPECT(ZKL_E_PENDING, zkl_op_wait(op, 10));
    EXPECT(ZKL_E_PENDING, zkl_op_result(op));
    EXPECT(ZKL_E_INVALID, zkl_op_wait(op, -2));
    OK(zkl_release(lock));
    OK(end(op));
    for (int i = 0; i < 3; i++) {
        CHECK(is_readable(fd));
        OK(zkl_op_result(op));
        OK(zkl_op_wait(op, 0));
        OK(zkl_op_wait(op, -1));
    }
    OK(zkl_op_cancel(op));
    OK(zkl_op_result(op));
    zkl_hold *hold = take_hold(op);
    CHECK(fcntl(fd, F_GETFD) == -1 && errno == EBADF);
    CHECK(zkl_hold_is_held(hold) == 1);
    OK(zkl_hold_release(hold));
    zkl_lock_free(lock);
}

/* A hold belongs to the number of its owner, not to the thread. The largest number is one below that of the calling thread. */
static void holds_belong_to_owners(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    zkl_hold *outer = acquire_as(lock, 7), *inner = acquire_as(lock, 7);
    CHECK(participants(lock) == 1);
    CHECK(zkl_is_held(lock) == 0 && zkl_lock_state(lock) == ZKL_LOCK_FREE);
    CHECK(zkl_is_held_in_process(lock) == 1 && zkl_lock_state_in_process(lock) == ZKL_LOCK_HELD);
    EXPECT(ZKL_E_NOT_OWNER, zkl_release(lock));
    EXPECT(ZKL_E_NOT_OWNER, zkl_release_nowait(lock));
    const uint64_t strangers[] = {ZKL_OWNER_NEW, 8, UINT64_MAX - 1, ZKL_OWNER_THREAD};
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++) {
        zkl_op *other = start(lock, strangers[i], 0);
        CHECK(end(other) == ZKL_E_TIMEOUT);
        zkl_op_free(other);
    }
    OK(zkl_hold_release(outer));
    CHECK(zkl_hold_is_held(inner) == 1);
    zkl_op *largest = start(lock, UINT64_MAX - 1, -1);
    EXPECT(ZKL_E_PENDING, zkl_op_wait(largest, 10));
    OK(zkl_hold_release_nowait(inner));
    OK(zkl_hold_release(succeed(largest)));

    /* The hold of the thread needs no handle. */
    zkl_op *own = start(lock, ZKL_OWNER_THREAD, SOON);
    OK(end(own));
    zkl_op_free(own);
    CHECK(zkl_is_held(lock) == 1 && on_new_thread(held_by_thread, lock) == 0);
    OK(zkl_acquire_timeout(lock, 0));
    OK(zkl_release(lock));
    OK(zkl_release(lock));
    CHECK(zkl_is_held(lock) == 0);
    zkl_lock_free(lock);
}

/* The message belongs to the operation. Neither another failure nor another thread changes it. */
static void an_operation_has_its_own_message(void)
{
    const char *path = fresh_path();
    zkl_lock *lock = new_mutex(client, path);
    OK(zkl_acquire(lock));
    /* Before its deadline, the operation must have read the node of the holder. */
    zkl_op *late = start(lock, 7, slack_ms() / 2), *waits = start(lock, 8, -1);
    CHECK(*zkl_op_message(waits) == '\0');
    CHECK(end(late) == ZKL_E_TIMEOUT);
    EXPECT(ZKL_E_HANDLE, zkl_client_state(NULL));
    const char *message = zkl_op_message(late);
    CHECK(strstr(message, path) != NULL && strstr(message, "held by") != NULL);
    EXPECT_MESSAGE("handle is NULL");
    EXPECT(ZKL_E_TIMEOUT, zkl_op_result(late));
    CHECK(strcmp(message, zkl_last_error_message()) == 0 && zkl_op_message(late) == message);
    OK(zkl_release(lock));
    OK(end(waits));
    CHECK(*zkl_op_message(waits) == '\0');
    zkl_op_free(late);
    EXPECT(ZKL_E_INVALID, zkl_acquire_timeout(lock, -2));
    CHECK(strcmp(zkl_op_message(late), "not an operation of this process") == 0);
    EXPECT_MESSAGE("was freed");
    CHECK(zkl_op_message(NULL) != NULL && *zkl_op_message((zkl_op *)(void *)lock) != '\0');
    EXPECT_MESSAGE(" is a lock; expected an operation");
    /* Reading the message does not accept the hold of the thread. */
    zkl_op *unheard = start(lock, ZKL_OWNER_THREAD, -1);
    OK(zkl_hold_release(take_hold(waits)));
    struct pollfd poller = {zkl_op_fd(unheard), POLLIN, 0};
    CHECK(poll(&poller, 1, SOON) == 1);
    CHECK(*zkl_op_message(unheard) == '\0' && zkl_is_held(lock) == 1);
    zkl_op_free(unheard);
    CHECK(zkl_is_held(lock) == 0);
    zkl_lock_free(lock);
}

/* An acquire that fails immediately reports the failure as the result of its operation. */
static void a_failure_that_is_known_at_once_is_a_result(void)
{
    const char *path = fresh_path();
    zkl_lock *one = new_mutex(client, path), *two = new_mutex(client, path), *read, *write;
    zkl_hold *hold = acquire_as(one, 7);
    zkl_op *op = start(two, 7, -1);
    CHECK(end(op) == ZKL_E_DEADLOCK);
    EXPECT_MESSAGE(path);
    zkl_op_free(op);
    OK(zkl_rwlock_new(client, fresh_path(), &read, &write));
    zkl_hold *reader = acquire_as(read, 7);
    op = start(write, 7, SOON);
    EXPECT(ZKL_E_DEADLOCK, zkl_op_wait(op, -1));
    zkl_op_free(op);
    op = start(write, 7, SOON);
    zkl_op_free(op);
    OK(zkl_hold_release(reader));
    OK(zkl_hold_release(hold));
    zkl_lock_free(one);
    zkl_lock_free(two);
    zkl_lock_free(read);
    zkl_lock_free(write);
}

/* A cancelled operation ends with CANCELED and leaves no node behind. */
static void cancel_ends_the_operation_and_deletes_its_node(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    OK(zkl_acquire(lock));
    zkl_op *one = start(lock, 1, -1), *two = start(lock, 2, -1), *three = start(lock, 3, SOON);
    await_participants(lock, 4);
    OK(zkl_op_cancel(one));
    CHECK(end(one) == ZKL_E_CANCELED);
    OK(zkl_op_cancel(one));
    await_participants(lock, 3);
    EXPECT(ZKL_E_PENDING, zkl_op_result(two));
    OK(zkl_cancel(lock));
    CHECK(end(two) == ZKL_E_CANCELED && end(three) == ZKL_E_CANCELED);
    await_participants(lock, 1);
    CHECK(zkl_is_held(lock) == 1);
    OK(zkl_release(lock));
    zkl_op_free(one);
    zkl_op_free(two);
    zkl_op_free(three);
    zkl_lock_free(lock);
}

/* Operations time out at their deadlines without a waiting thread. Returns false if an operation failed with ZKL_E_CONNECTION,
 * because the server of a busy machine still owed the client an answer. */
static bool operations_time_out(void)
{
    bool have_timed_out = true;
    zkl_lock *lock = new_mutex(client, fresh_path());
    enum { COUNT = 20 };
    zkl_op *ops[COUNT];
    int64_t starts[COUNT], limits[COUNT];
    bool ended[COUNT] = {false};
    zkl_status results[COUNT];
    struct pollfd pollers[COUNT];
    OK(zkl_acquire(lock));
    for (int i = 0; i < COUNT; i++) {
        /* The operations do not start in the order in which they end. */
        limits[i] = LIMIT_MS + (int64_t)(i * 7 % COUNT) * 20;
        starts[i] = now_ms();
        ops[i] = start(lock, (uint64_t)i + 1, limits[i]);
        pollers[i] = (struct pollfd){zkl_op_fd(ops[i]), POLLIN, 0};
    }
    for (int left = COUNT; left > 0;) {
        CHECK(poll(pollers, COUNT, SOON) > 0);
        int64_t now = now_ms();
        for (int i = 0; i < COUNT; i++) {
            if (ended[i] || pollers[i].revents == 0) continue;
            results[i] = zkl_op_result(ops[i]);
            if (results[i] == ZKL_E_CONNECTION) {
                have_timed_out = false;
            } else {
                EXPECT(ZKL_E_TIMEOUT, zkl_op_result(ops[i]));
                /* The first operation in the queue waits for the holder. The others may wait for it too. */
                EXPECT_MESSAGE(i == 0 ? "held by" : "-lock-");
            }
            /* now_ms() rounds both times down. */
            CHECK(now - starts[i] >= limits[i] - 1 && now - starts[i] <= limits[i] + slack_ms());
            ended[i] = true;
            pollers[i].fd = -1;
            left--;
        }
    }
    for (int i = 0; i < COUNT; i++) {
        EXPECT(results[i], zkl_op_wait(ops[i], 0));
        EXPECT(results[i], zkl_op_result(ops[i]));
        zkl_op_free(ops[i]);
    }
    await_participants(lock, 1);
    OK(zkl_release(lock));
    zkl_lock_free(lock);
    return have_timed_out;
}

static void deadlines_are_kept_when_nobody_waits(void)
{
    for (int64_t give_up = now_ms() + SOON; !operations_time_out();) CHECK(now_ms() < give_up);
}

/* If the program has not taken the hold of an operation, the library releases the hold when the operation is freed, and leaves no
 * node behind. */
static void freeing_an_operation_releases_a_hold_that_was_not_taken(void)
{
    const char *path = fresh_path();
    zkl_lock *lock = new_mutex(client, path);
    struct second_lock other = second_client_lock(path);
    zkl_op *op = start(lock, 7, SOON);
    int fd = zkl_op_fd(op);
    AWAIT(is_readable(fd));
    CHECK(zkl_is_held_in_process(lock) == 1);
    zkl_op_free(op);
    CHECK(zkl_is_held_in_process(lock) == 0);
    await_participants(other.lock, 0);

    op = start(lock, 7, SOON);
    OK(zkl_op_wait(op, -1));
    zkl_op_free(op);
    CHECK(zkl_is_held_in_process(lock) == 0);

    /* Only the re-entry by the operation is undone. */
    zkl_hold *hold = acquire_as(lock, 7);
    zkl_op_free(start(lock, 7, SOON));
    CHECK(zkl_hold_is_held(hold) == 1 && participants(other.lock) == 1);
    OK(zkl_hold_release(hold));
    CHECK(zkl_is_held_in_process(lock) == 0);

    OK(zkl_acquire(lock));
    op = start(lock, 7, -1);
    await_participants(other.lock, 2);
    zkl_op_free(op);
    await_participants(other.lock, 1);
    OK(zkl_release(lock));
    free_second_lock(&other);
    zkl_lock_free(lock);
}

struct contender {
    zkl_lock *lock;
    atomic_bool stops;
    atomic_int rounds;
};

static void *contend(void *argument)
{
    struct contender *contender = argument;
    while (!atomic_load(&contender->stops)) {
        OK(acquire_and_release(contender->lock));
        atomic_fetch_add(&contender->rounds, 1);
    }
    return NULL;
}

/* Frees an operation at about the time when it succeeds. No node is left behind. */
static void freeing_an_operation_while_it_is_granted_leaves_no_node(void)
{
    const char *path = fresh_path();
    zkl_lock *lock = new_mutex(client, path);
    struct second_lock other = second_client_lock(path);
    struct contender contender = {.lock = other.lock};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, contend, &contender) == 0);
    int told = 0;
    for (int round = 0; round < 300; round++) {
        uint64_t owner = (uint64_t)round % 3 + 1;
        zkl_op *op = start(lock, owner, -1);
        struct timespec pause = {0, (round % 30) * 50000};
        nanosleep(&pause, NULL);
        bool looks = round % 4 == 0;
        if (looks && zkl_op_result(op) == ZKL_OK) {
            OK(zkl_hold_release_nowait(take_hold(op)));
            told++;
        } else {
            zkl_op_free(op);
        }
    }
    atomic_store(&contender.stops, true);
    CHECK(pthread_join(thread, NULL) == 0);
    fprintf(stderr, "  %d of 300 were told, and the contender got in %d times\n", told, atomic_load(&contender.rounds));
    await_participants(other.lock, 0);
    CHECK(zkl_lock_state_in_process(lock) == ZKL_LOCK_FREE);
    OK(zkl_acquire_timeout(other.lock, 0));
    OK(zkl_release(other.lock));
    free_second_lock(&other);
    zkl_lock_free(lock);
}

struct waiter {
    pthread_t thread;
    zkl_op *op;
    atomic_bool *waits;
    zkl_status status;
};

static void *wait_for_op(void *argument)
{
    struct waiter *waiter = argument;
    EXPECT(ZKL_E_PENDING, zkl_op_wait(waiter->op, 1));
    atomic_store(waiter->waits, true);
    waiter->status = zkl_op_wait(waiter->op, -1);
    return NULL;
}

/* Several threads can wait for one operation, and freeing it wakes all of them. */
static void several_threads_wait_for_one(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    enum { COUNT = 4 };
    for (int freed = 0; freed < 2; freed++) {
        OK(zkl_acquire(lock));
        zkl_op *op = start(lock, 7, -1);
        struct waiter waiters[COUNT];
        atomic_bool waits[COUNT];
        for (int i = 0; i < COUNT; i++) {
            atomic_init(&waits[i], false);
            waiters[i] = (struct waiter){.op = op, .waits = &waits[i]};
            CHECK(pthread_create(&waiters[i].thread, NULL, wait_for_op, &waiters[i]) == 0);
        }
        for (int i = 0; i < COUNT; i++) AWAIT(atomic_load(&waits[i]));
        if (freed) zkl_op_free(op);
        OK(zkl_release(lock));
        for (int i = 0; i < COUNT; i++) {
            CHECK(pthread_join(waiters[i].thread, NULL) == 0);
            /* A thread that had not yet begun to wait again finds an invalid handle. */
            zkl_status status = waiters[i].status;
            CHECK(freed ? status == ZKL_E_CLOSED || status == ZKL_E_HANDLE : status == ZKL_OK);
        }
        if (freed) {
            EXPECT(ZKL_E_HANDLE, zkl_op_result(op));
            EXPECT_MESSAGE("was freed; expected an operation");
            await_participants(lock, 0);
        } else {
            OK(zkl_hold_release(take_hold(op)));
        }
    }
    zkl_lock_free(lock);
}

/* Freeing the lock or the client ends an operation with CLOSED. */
static void freeing_the_lock_or_the_client_ends_it(void)
{
    const char *path = fresh_path();
    zkl_lock *lock = new_mutex(client, path);
    OK(zkl_acquire(lock));
    struct second_lock other = second_client_lock(path);
    zkl_lock *same = new_mutex(other.client, path);
    zkl_op *op = start(same, 7, -1), *second = start(other.lock, 8, -1);
    await_participants(lock, 3);
    CHECK(zkl_op_fd(op) >= 0);
    zkl_lock_free(same);
    CHECK(end(op) == ZKL_E_CLOSED);
    await_participants(lock, 2);
    zkl_lock *kept = new_mutex(other.client, fresh_path());
    zkl_op *unheard = start(kept, 7, -1);
    AWAIT(zkl_is_held_in_process(kept) == 1);
    zkl_client_free(other.client);
    CHECK(end(second) == ZKL_E_CLOSED);
    EXPECT(ZKL_E_CLOSED, zkl_op_wait(second, -1));
    OK(end(unheard));
    zkl_op *late = second;
    EXPECT(ZKL_E_CLOSED, zkl_acquire_start(kept, 7, -1, &late));
    CHECK(late == second);
    await_participants(lock, 1);
    zkl_op_free(op);
    zkl_op_free(second);
    zkl_op_free(unheard);
    zkl_lock_free(kept);
    zkl_lock_free(other.lock);
    OK(zkl_release(lock));
    zkl_lock_free(lock);
}

/* One epoll loop can serve many operations. */
static void a_loop_serves_many(void)
{
    enum { LOCKS = 8, TASKS = 64 };
    zkl_lock *locks[LOCKS];
    zkl_op *ops[TASKS];
    int64_t tokens[LOCKS] = {0};
    int served = 0, loop = epoll_create1(EPOLL_CLOEXEC);
    CHECK(loop >= 0);
    for (int i = 0; i < LOCKS; i++) locks[i] = new_mutex(client, fresh_path());
    for (uint32_t task = 0; task < TASKS; task++) {
        ops[task] = start(locks[task % LOCKS], task + 1, SOON);
        /* Half of the operations use edge-triggered notification. */
        struct epoll_event event = {.events = task % 2 == 0 ? (uint32_t)EPOLLIN : (uint32_t)(EPOLLIN | EPOLLET), .data.u32 = task};
        CHECK(epoll_ctl(loop, EPOLL_CTL_ADD, zkl_op_fd(ops[task]), &event) == 0);
    }
    while (served < TASKS) {
        struct epoll_event events[16];
        int count = epoll_wait(loop, events, 16, SOON);
        CHECK(count > 0);
        for (int i = 0; i < count; i++) {
            uint32_t task = events[i].data.u32;
            int64_t token = 0;
            OK(zkl_op_result(ops[task]));
            CHECK(epoll_ctl(loop, EPOLL_CTL_DEL, zkl_op_fd(ops[task]), NULL) == 0);
            zkl_hold *hold = take_hold(ops[task]);
            OK(hold_token(hold, &token));
            CHECK(zkl_hold_is_held(hold) == 1 && token > tokens[task % LOCKS]);
            tokens[task % LOCKS] = token;
            OK(zkl_hold_release_nowait(hold));
            served++;
        }
    }
    for (int i = 0; i < LOCKS; i++) {
        await_participants(locks[i], 0);
        zkl_lock_free(locks[i]);
    }
    CHECK(close(loop) == 0);
}

/* Takes keys until the queue is empty, and returns their number. */
static size_t take_keys(zkl_completion_queue *queue, uint64_t *keys, size_t count)
{
    size_t taken = 0, sum = 0;
    do {
        OK(zkl_completion_queue_take(queue, keys + sum, count - sum < 5 ? count - sum : 5, &taken));
        sum += taken;
    } while (taken > 0 && sum < count);
    return sum;
}

/* One descriptor serves many operations. Each operation reports its key once, when it has ended. */
static void a_completion_queue_serves_many(void)
{
    enum { LOCKS = 8, TASKS = 64 };
    zkl_lock *locks[LOCKS];
    zkl_op *ops[TASKS];
    uint64_t keys[TASKS];
    int served[TASKS] = {0}, left = TASKS;
    zkl_completion_queue *queue = NULL;
    OK(zkl_completion_queue_new(&queue));
    struct pollfd poller = {zkl_completion_queue_fd(queue), POLLIN, 0};
    CHECK(poller.fd >= 0 && poller.fd == zkl_completion_queue_fd(queue));
    CHECK(!is_readable(poller.fd));
    CHECK(take_keys(queue, keys, TASKS) == 0);
    for (int i = 0; i < LOCKS; i++) locks[i] = new_mutex(client, fresh_path());
    for (uint32_t task = 0; task < TASKS; task++) {
        ops[task] = start(locks[task % LOCKS], task + 1, SOON);
        OK(zkl_op_notify(ops[task], queue, UINT64_MAX - task));
    }
    while (left > 0) {
        CHECK(poll(&poller, 1, SOON) == 1);
        size_t count = take_keys(queue, keys, TASKS);
        for (size_t i = 0; i < count; i++) {
            uint64_t task = UINT64_MAX - keys[i];
            CHECK(task < TASKS && served[task]++ == 0);
            OK(zkl_op_result(ops[task]));
            OK(zkl_hold_release_nowait(take_hold(ops[task])));
            left--;
        }
    }
    CHECK(!is_readable(poller.fd));
    for (int i = 0; i < LOCKS; i++) {
        await_participants(locks[i], 0);
        zkl_lock_free(locks[i]);
    }
    zkl_completion_queue_free(queue);
}

/* An operation that has already ended reports its key at once, an operation that is freed too, and a queue that is freed
   changes no operation. */
static void a_completion_queue_and_its_operations_are_independent(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    zkl_completion_queue *queue = NULL, *other = NULL;
    uint64_t keys[4] = {0};
    size_t taken = 7;
    OK(zkl_completion_queue_new(&queue));
    OK(zkl_completion_queue_new(&other));
    zkl_op *ended = start(lock, 1, SOON), *waiting = start(lock, 2, SOON), *freed = start(lock, 3, SOON);
    OK(zkl_op_wait(ended, SOON));
    OK(zkl_op_notify(ended, queue, 11));
    OK(zkl_op_notify(ended, queue, 12));
    CHECK(is_readable(zkl_completion_queue_fd(queue)));
    OK(zkl_completion_queue_take(queue, keys, 1, &taken));
    CHECK(taken == 1 && keys[0] == 11);
    CHECK(is_readable(zkl_completion_queue_fd(queue)));
    OK(zkl_completion_queue_take(queue, keys, 4, &taken));
    CHECK(taken == 1 && keys[0] == 12);
    CHECK(!is_readable(zkl_completion_queue_fd(queue)));

    OK(zkl_op_notify(freed, queue, 13));
    zkl_op_free(freed);
    OK(zkl_completion_queue_take(queue, keys, 4, &taken));
    CHECK(taken == 1 && keys[0] == 13);

    OK(zkl_op_notify(waiting, queue, 14));
    OK(zkl_op_notify(waiting, other, 15));
    zkl_completion_queue_free(queue);
    EXPECT(ZKL_E_HANDLE, zkl_completion_queue_take(queue, keys, 4, &taken));
    EXPECT(ZKL_E_HANDLE, zkl_completion_queue_fd(queue));
    EXPECT(ZKL_E_HANDLE, zkl_op_notify(waiting, queue, 16));
    OK(zkl_hold_release(take_hold(ended)));
    OK(zkl_op_wait(waiting, SOON));
    struct pollfd poller = {zkl_completion_queue_fd(other), POLLIN, 0};
    CHECK(poll(&poller, 1, SOON) == 1);
    OK(zkl_completion_queue_take(other, keys, 4, &taken));
    CHECK(taken == 1 && keys[0] == 15);
    OK(zkl_hold_release(take_hold(waiting)));
    zkl_completion_queue_free(other);
    zkl_completion_queue_free(NULL);
    zkl_lock_free(lock);
}

/* select reports the descriptor of a finished operation. */
static void select_reports_the_descriptor(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    zkl_op *op = start(lock, 7, SOON);
    int fd = zkl_op_fd(op);
    fd_set readable;
    struct timeval limit = {SOON / 1000, 0};
    FD_ZERO(&readable);
    FD_SET(fd, &readable);
    CHECK(select(fd + 1, &readable, NULL, NULL, &limit) == 1 && FD_ISSET(fd, &readable));
    OK(zkl_op_result(op));
    OK(zkl_hold_release(take_hold(op)));
    zkl_lock_free(lock);
}

/* Without a free descriptor, zkl_op_fd fails with EXHAUSTED, and the operation continues. */
static void operations_work_without_free_descriptors(void)
{
    /* Skipped for the reason given in a_client_without_descriptors_is_exhausted. */
    if (under_valgrind()) return;
    zkl_lock *lock = new_mutex(client, fresh_path());
    struct rlimit before, none;
    zkl_op *op = start(lock, 7, SOON);
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = before;
    none.rlim_cur = 0;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    EXPECT(ZKL_E_EXHAUSTED, zkl_op_fd(op));
    EXPECT_MESSAGE("descriptor");
    zkl_op *second = start(lock, 7, SOON);
    OK(zkl_op_wait(op, -1));
    OK(zkl_op_wait(second, -1));
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK(is_readable(zkl_op_fd(op)));
    OK(zkl_hold_release(take_hold(op)));
    OK(zkl_hold_release(take_hold(second)));
    zkl_lock_free(lock);
}

static int open_descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 1024; fd++) count += fcntl(fd, F_GETFD) != -1;
    return count;
}

/* Operations acquire read locks and write locks in queue order. */
static void read_and_write_locks(void)
{
    zkl_lock *read, *write;
    OK(zkl_rwlock_new(client, fresh_path(), &read, &write));
    zkl_hold *first = acquire_as(read, 1), *second = acquire_as(read, 2);
    zkl_op *writer = start(write, 3, SOON), *reader = start(read, 4, SOON);
    OK(zkl_hold_release(first));
    EXPECT(ZKL_E_PENDING, zkl_op_wait(writer, 20));
    OK(zkl_hold_release(second));
    OK(end(writer));
    EXPECT(ZKL_E_PENDING, zkl_op_result(reader));
    OK(zkl_hold_release(acquire_as(read, 3)));
    OK(zkl_hold_release(take_hold(writer)));
    OK(zkl_hold_release(succeed(reader)));
    zkl_lock_free(read);
    zkl_lock_free(write);
}

/* An operation waits for a semaphore mutex until any thread releases it. */
static void semaphore_mutexes(void)
{
    zkl_lock *lock = new_semaphore_mutex(client, fresh_path());
    zkl_hold *hold = acquire_as(lock, 7);
    zkl_op *op = start(lock, 7, SOON), *freed = start(lock, 8, SOON);
    EXPECT(ZKL_E_PENDING, zkl_op_wait(op, 20));
    zkl_op_free(freed);
    OK(zkl_release(lock));
    OK(end(op));
    EXPECT(ZKL_E_NOT_OWNER, zkl_hold_release(hold));
    OK(zkl_hold_release(take_hold(op)));
    await_participants(lock, 0);
    zkl_lock_free(lock);
}

/* Multi-locks of two locks: in one transaction, and in steps with a lock of another kind or of another client. */
static void multi_locks(void)
{
    struct second_lock other = second_client_lock(fresh_path());
    for (int kind = 0; kind < 3; kind++) {
        zkl_lock *one = new_mutex(client, fresh_path());
        const char *path = fresh_path();
        zkl_lock *two = kind == 0   ? new_mutex(client, path)
                        : kind == 1 ? new_semaphore_mutex(client, path)
                                    : new_mutex(other.client, path);
        zkl_lock *both = new_multi(one, two);
        zkl_hold *hold = acquire_as(both, 7), *again = acquire_as(one, 7);
        CHECK(zkl_is_held_in_process(one) == 1 && zkl_is_held_in_process(two) == 1);
        OK(zkl_hold_release(again));
        zkl_op *wants = start(both, 8, SOON);
        EXPECT(ZKL_E_PENDING, zkl_op_wait(wants, 20));
        OK(zkl_hold_release(hold));
        OK(zkl_hold_release(succeed(wants)));

        /* The operation holds one of the two locks and then releases it: at the timeout, after a cancel, after a free, and
         * when the lock is closed. */
        zkl_lock *holder = kind == 1 ? NULL : new_mutex(client, path);
        zkl_hold *held = acquire_as(holder == NULL ? two : holder, 1);
        zkl_op *overdue = start(both, 2, LIMIT_MS);
        CHECK(end(overdue) == ZKL_E_TIMEOUT);
        await_participants(one, 0);
        zkl_op *canceled = start(both, 3, -1);
        await_participants(one, 1);
        OK(zkl_op_cancel(canceled));
        CHECK(end(canceled) == ZKL_E_CANCELED);
        zkl_op *given_up = start(both, 4, -1);
        await_participants(one, 1);
        zkl_op_free(given_up);
        await_participants(one, 0);
        zkl_op *closed = start(both, 5, -1);
        await_participants(one, 1);
        zkl_lock_free(kind == 1 ? both : two);
        CHECK(end(closed) == ZKL_E_CLOSED);
        await_participants(one, 0);
        CHECK(zkl_is_held_in_process(one) == 0);
        zkl_op_free(overdue);
        zkl_op_free(canceled);
        zkl_op_free(closed);
        OK(zkl_hold_release(held));
        zkl_lock_free(holder);
        zkl_lock_free(two);
        zkl_lock_free(both);
        zkl_lock_free(one);
    }
    free_second_lock(&other);
}

/* An operation acquires leases, which the program can take exactly once. */
static void leases_of_semaphores(void)
{
    zkl_semaphore *semaphore = new_semaphore(client, fresh_path(), 3);
    zkl_lock *lock = new_mutex(client, fresh_path());
    zkl_hold *leases = NULL, *more = NULL;
    zkl_op *unused = (zkl_op *)&semaphore;
    EXPECT(ZKL_E_INVALID, zkl_semaphore_acquire_start(semaphore, 4, SOON, &unused));
    EXPECT_MESSAGE("only 3");
    EXPECT(ZKL_E_INVALID, zkl_semaphore_acquire_start(semaphore, 0, SOON, &unused));
    CHECK(unused == (zkl_op *)&semaphore);
    zkl_op *two = start_leases(semaphore, 2, SOON);
    OK(end(two));
    OK(zkl_op_hold(two, &leases));
    EXPECT(ZKL_E_INVALID, zkl_op_hold(two, &more));
    EXPECT_MESSAGE("already taken");
    CHECK(more == NULL && zkl_hold_is_held(leases) == 1);
    OK(zkl_op_result(two));
    zkl_op_free(two);
    CHECK(zkl_hold_is_held(leases) == 1);

    zkl_op *waits = start_leases(semaphore, 2, -1), *overdue = start_leases(semaphore, 2, LIMIT_MS);
    EXPECT(ZKL_E_PENDING, zkl_op_hold(waits, &more));
    EXPECT_MESSAGE("is still running");
    CHECK(end(overdue) == ZKL_E_TIMEOUT);
    EXPECT(ZKL_E_TIMEOUT, zkl_op_hold(overdue, &more));
    zkl_op_free(overdue);
    OK(zkl_hold_release(leases));
    OK(end(waits));

    /* The library releases leases whose operation is freed before the program takes them. */
    CHECK(semaphore_participants(semaphore) == 2);
    zkl_op_free(waits);
    AWAIT(semaphore_participants(semaphore) == 0);

    zkl_op *all = start_leases(semaphore, 3, SOON);
    OK(zkl_op_wait(all, -1));
    zkl_op *freed = start_leases(semaphore, 1, -1), *canceled = start_leases(semaphore, 1, -1), *closed;
    OK(zkl_op_cancel(canceled));
    CHECK(end(canceled) == ZKL_E_CANCELED);
    zkl_op_free(canceled);
    zkl_op_free(freed);
    AWAIT(semaphore_participants(semaphore) == 3);
    canceled = start_leases(semaphore, 1, -1);
    OK(zkl_semaphore_cancel(semaphore));
    CHECK(end(canceled) == ZKL_E_CANCELED);
    closed = start_leases(semaphore, 1, -1);
    zkl_semaphore_free(semaphore);
    CHECK(end(closed) == ZKL_E_CLOSED);
    OK(zkl_op_hold(all, &more));
    OK(zkl_hold_release(more));

    zkl_op *of_lock = start(lock, 7, SOON);
    OK(end(of_lock));
    OK(zkl_op_hold(of_lock, &more));
    zkl_op_free(of_lock);
    CHECK(zkl_hold_is_held(more) == 1);
    OK(zkl_hold_release(more));
    CHECK(zkl_is_held_in_process(lock) == 0);
    zkl_op_free(all);
    zkl_op_free(canceled);
    zkl_op_free(closed);
    zkl_lock_free(lock);
}

/* An argument that turns out to be invalid later is also ZKL_E_INVALID. */
static void malformed_count_fails_the_operation(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    zkl_semaphore *semaphore = NULL;
    char count_path[256];
    size_t needed;
    OK(zkl_lock_set_data(lock, "three", 5));
    OK(zkl_acquire(lock));
    OK(zkl_lock_node_path(lock, count_path, sizeof count_path, &needed));
    OK(zkl_semaphore_new_counted(client, fresh_path(), count_path, 1, &semaphore));
    /* A server may answer before the function that starts the operation returns. */
    zkl_op *op = NULL;
    zkl_status started = zkl_semaphore_acquire_start(semaphore, 1, SOON, &op);
    CHECK(started == ZKL_E_INVALID || (started == ZKL_OK && end(op) == ZKL_E_INVALID));
    EXPECT_MESSAGE("expected the 4 bytes of a SharedCount");
    zkl_op_free(op);
    zkl_semaphore_free(semaphore);
    OK(zkl_release(lock));
    zkl_lock_free(lock);
}

/* Thousands of operations can run at the same time without using a descriptor each. */
static void many_at_once(void)
{
    enum { COUNT = 2000, LOCKS = 200 };
    static zkl_lock *locks[LOCKS];
    static zkl_op *ops[COUNT];
    int descriptors = open_descriptors();
    for (int i = 0; i < LOCKS; i++) locks[i] = new_mutex(client, fresh_path());
    for (int i = 0; i < COUNT; i++) ops[i] = start(locks[i % LOCKS], (uint64_t)i + 1, -1);
    int served = 0;
    for (int64_t deadline = now_ms() + SOON; served < COUNT; sleep_ms(1)) {
        CHECK(now_ms() < deadline);
        for (int i = 0; i < COUNT; i++) {
            if (ops[i] == NULL || zkl_op_result(ops[i]) == ZKL_E_PENDING) continue;
            OK(zkl_hold_release_nowait(take_hold(ops[i])));
            ops[i] = NULL;
            served++;
        }
    }
    CHECK(open_descriptors() == descriptors);
    for (int i = 0; i < COUNT; i++) ops[i] = start(locks[i % LOCKS], (uint64_t)i + 1, -1);
    for (int i = COUNT - 1; i >= 0; i--) zkl_op_free(ops[i]);
    for (int i = 0; i < LOCKS; i++) await_participants(locks[i], 0);
    for (int i = 0; i < LOCKS; i++) zkl_lock_free(locks[i]);
}

/* The client reports EXHAUSTED, whatever needs the descriptor: the library's thread, the client or the socket. The test
 * requires that no other client exists. */
static void a_client_without_descriptors_is_exhausted(void)
{
    struct rlimit before, few;
    /* Valgrind reports success for a socketpair and closes it if only one descriptor is free. */
    if (under_valgrind()) return;
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set(config, "connect.timeout", "1000"));
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    few = before;
    const int open = open_descriptors();
    int exhausted = 0, spare = 0;
    for (zkl_status status = ZKL_E_EXHAUSTED; status != ZKL_OK; spare++) {
        CHECK(spare < 32);
        few.rlim_cur = (rlim_t)(open + spare);
        CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
        zkl_client *made = NULL;
        status = zkl_client_new(servers, config, &made);
        CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
        if (status != ZKL_OK) {
            if (status != ZKL_E_EXHAUSTED) fprintf(stderr, "with %d descriptors to spare: %d\n", spare, (int)status);
            CHECK(status == ZKL_E_EXHAUSTED);
            EXPECT_MESSAGE("no file descriptors left");
            exhausted++;
        }
        zkl_client_free(made);
    }
    /* The epoll, its waker, the eventfd of the client, and the socket. */
    CHECK(exhausted >= 3);
    zkl_config_free(config);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    RUN(a_client_without_descriptors_is_exhausted);
    client = new_client();
    RUN(operation_completes_unattended_and_its_descriptor_stays_readable);
    RUN(holds_belong_to_owners);
    RUN(an_operation_has_its_own_message);
    RUN(a_failure_that_is_known_at_once_is_a_result);
    RUN(cancel_ends_the_operation_and_deletes_its_node);
    RUN(deadlines_are_kept_when_nobody_waits);
    RUN(freeing_an_operation_releases_a_hold_that_was_not_taken);
    RUN(freeing_an_operation_while_it_is_granted_leaves_no_node);
    RUN(several_threads_wait_for_one);
    RUN(freeing_the_lock_or_the_client_ends_it);
    RUN(a_loop_serves_many);
    RUN(a_completion_queue_serves_many);
    RUN(a_completion_queue_and_its_operations_are_independent);
    RUN(select_reports_the_descriptor);
    RUN(operations_work_without_free_descriptors);
    RUN(read_and_write_locks);
    RUN(semaphore_mutexes);
    RUN(multi_locks);
    RUN(leases_of_semaphores);
    RUN(malformed_count_fails_the_operation);
    RUN(many_at_once);
    zkl_client_free(client);
    return 0;
}
