/* Calls that wait for a server, as operations: connecting and closing a client, releasing, and queries. */
#include "check.h"

#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>

#include <zklock_standalone.h>

enum { SOON = 60000 };

static zkl_client *client;

static bool is_readable(int fd, int limit_ms)
{
    struct pollfd poller = {fd, POLLIN, 0};
    CHECK(poll(&poller, 1, limit_ms) >= 0);
    return (poller.revents & POLLIN) != 0;
}

/* Waits for the end of an operation with its descriptor only. */
static zkl_status end(zkl_op *op)
{
    int fd = zkl_op_fd(op);
    CHECK(fd >= 0 && is_readable(fd, SOON) && is_readable(fd, 0));
    zkl_status result = zkl_op_result(op);
    CHECK(result != ZKL_E_PENDING && result == zkl_op_result(op) && result == zkl_op_wait(op, -1));
    return result;
}

/* Waits for the end of an operation that must succeed, and frees it. */
static void succeed(zkl_op *op)
{
    OK(end(op));
    zkl_op_free(op);
}

static int64_t value_of(zkl_op *op)
{
    int64_t value = -7;
    OK(zkl_op_wait(op, SOON));
    OK(zkl_op_value(op, &value));
    zkl_op_free(op);
    return value;
}

static zkl_client *take_client(zkl_op *op)
{
    zkl_client *taken = NULL;
    OK(zkl_op_client(op, &taken));
    CHECK(taken != NULL);
    return taken;
}

/* A client connects without a waiting thread. The operation gives the client away once. */
static void a_client_connects_as_an_operation(void)
{
    zkl_op *op = NULL;
    OK(zkl_client_start(servers, NULL, &op));
    OK(end(op));
    CHECK(*zkl_op_message(op) == '\0');
    OK(zkl_op_cancel(op));
    zkl_client *own = take_client(op), *again = NULL;
    EXPECT(ZKL_E_INVALID, zkl_op_client(op, &again));
    EXPECT_MESSAGE("the client of this operation was already taken");
    CHECK(again == NULL && zkl_client_state(own) == ZKL_STATE_CONNECTED);
    zkl_op_free(op);
    /* The client outlives its operation. */
    zkl_lock *lock = new_mutex(own, fresh_path());
    OK(zkl_acquire_timeout(lock, SOON));
    OK(zkl_release(lock));
    zkl_lock_free(lock);
    zkl_client_free(own);
}

/* The operation ends with the connect timeout, and its message names the server. */
static void a_client_that_reaches_no_server_fails_at_its_timeout(void)
{
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set_connect_timeout_ms(config, LIMIT_MS));
    zkl_op *op = NULL;
    int64_t began = now_ms();
    OK(zkl_client_start("127.0.0.1:1", config, &op));
    CHECK(now_ms() - began < slack_ms());
    EXPECT(ZKL_E_PENDING, zkl_op_result(op));
    zkl_client *none = NULL;
    EXPECT(ZKL_E_PENDING, zkl_op_client(op, &none));
    CHECK(end(op) == ZKL_E_CONNECTION);
    CHECK(now_ms() - began >= LIMIT_MS - 1 && now_ms() - began <= LIMIT_MS + slack_ms());
    CHECK(strstr(zkl_op_message(op), "127.0.0.1:1") != NULL);
    EXPECT(ZKL_E_CONNECTION, zkl_op_client(op, &none));
    CHECK(none == NULL);
    zkl_op_free(op);
    zkl_config_free(config);
}

static void count_drop(void *user)
{
    atomic_fetch_add((atomic_int *)user, 1);
}

static void ignore_event(void *user, const zkl_event *event)
{
    (void)user;
    (void)event;
}

struct op_user {
    zkl_op *op;
    atomic_int drops;
};

/* The library may call user_drop inside zkl_op_cancel. A function of the program may use the operation there. */
static void use_the_operation(void *user)
{
    struct op_user *seen = user;
    if (seen->op != NULL) EXPECT(ZKL_E_CANCELED, zkl_op_result(seen->op));
    atomic_fetch_add(&seen->drops, 1);
}

/* A connect that was canceled or freed ends at once, and the library drops what the config has lent. */
static void a_connect_can_be_canceled_and_freed(void)
{
    for (int frees = 0; frees < 2; frees++) {
        struct op_user user = {NULL, 0};
        zkl_config *config = zkl_config_new();
        OK(zkl_config_set_connect_timeout_ms(config, SOON));
        OK(zkl_config_set_event_callback(config, ignore_event, &user, use_the_operation));
        OK(zkl_client_start("127.0.0.1:1", config, &user.op));
        zkl_config_free(config);
        CHECK(atomic_load(&user.drops) == 0);
        zkl_op *op = user.op;
        if (frees) {
            user.op = NULL;
        } else {
            /* The user_drop function makes a call that fails, so the error message changes. */
            CHECK(zkl_op_cancel(op) == ZKL_OK);
            CHECK(end(op) == ZKL_E_CANCELED);
            const char *message = zkl_op_message(op);
            CHECK(strstr(message, "canceled: no answer from 127.0.0.1:1 within") != NULL);
        }
        zkl_op_free(op);
        AWAIT(atomic_load(&user.drops) == 1);
    }
    /* A client that the program does not take is closed. */
    atomic_int drops = 0;
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set_event_callback(config, ignore_event, &drops, count_drop));
    zkl_op *op = NULL;
    OK(zkl_client_start(servers, config, &op));
    zkl_config_free(config);
    OK(end(op));
    zkl_op_free(op);
    AWAIT(atomic_load(&drops) == 1);
}

/* A release takes effect at once, and its operation ends when the node is gone. */
static void a_release_is_an_operation(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    zkl_op *op = NULL;
    zkl_hold *outer = acquire_hold(lock, 7), *inner = acquire_hold(lock, 7);
    OK(zkl_hold_release_start(outer, &op));
    succeed(op);
    CHECK(zkl_is_held_in_process(lock) == 1);
    OK(zkl_hold_release_start(inner, &op));
    CHECK(zkl_is_held_in_process(lock) == 0);
    OK(zkl_op_cancel(op));
    succeed(op);
    CHECK(participants(lock) == 0);
    EXPECT(ZKL_E_HANDLE, zkl_hold_release_start(inner, &op));
    /* The lock has released the hold. */
    zkl_hold *own = acquire_hold(lock, ZKL_OWNER_THREAD);
    OK(zkl_release(lock));
    OK(zkl_hold_release_start(own, &op));
    CHECK(end(op) == ZKL_E_NOT_OWNER);
    /* The error belongs to the operation, not to the thread that started it. */
    EXPECT(ZKL_E_HANDLE, zkl_client_state(NULL));
    CHECK(strstr(zkl_op_message(op), "handle is NULL") == NULL && *zkl_op_message(op) != '\0');
    EXPECT_MESSAGE("handle is NULL");
    zkl_op_free(op);
    /* Freeing the operation does not stop the release. */
    OK(zkl_hold_release_start(acquire_hold(lock, ZKL_OWNER_NEW), &op));
    zkl_op_free(op);
    CHECK(zkl_is_held_in_process(lock) == 0);
    await_participants(lock, 0);
    zkl_lock_free(lock);
}

/* The start of a release of leases frees their handle. */
static void a_release_of_leases_is_an_operation(void)
{
    zkl_semaphore *semaphore = new_semaphore(client, fresh_path(), 3);
    zkl_hold *leases = NULL;
    zkl_op *op = NULL;
    OK(zkl_semaphore_acquire_timeout(semaphore, 2, SOON, &leases));
    OK(zkl_semaphore_participants_start(semaphore, &op));
    CHECK(value_of(op) == 2);
    EXPECT(ZKL_E_INVALID, zkl_hold_release_start(leases, NULL));
    CHECK(zkl_hold_is_held(leases) == 1);
    OK(zkl_hold_release_start(leases, &op));
    EXPECT(ZKL_E_HANDLE, zkl_hold_release(leases));
    succeed(op);
    OK(zkl_semaphore_participants_start(semaphore, &op));
    CHECK(value_of(op) == 0);
    zkl_semaphore_free(semaphore);
}

/* The participants of an operation stay in memory until it is freed, also after the lock was freed. */
static void participants_come_from_the_operation(void)
{
    zkl_lock *read, *write, *other_read, *other_write;
    const char *path = fresh_path();
    OK(zkl_rwlock_new(client, path, &read, &write));
    OK(zkl_rwlock_new(client, path, &other_read, &other_write));
    OK(zkl_lock_set_data(read, "reader", 6));
    zkl_hold *reader = acquire_hold(read, 1);
    zkl_op *waits = NULL, *readers = NULL, *all = NULL;
    OK(zkl_acquire_start(other_write, 2, -1, &waits));
    AWAIT(participants(other_write) == 1);
    OK(zkl_participants_start(read, &readers));
    OK(zkl_queue_start(write, &all));
    OK(end(readers));
    OK(end(all));
    int64_t count = 0;
    OK(zkl_op_value(readers, &count));
    CHECK(count == 1);
    OK(zkl_op_value(all, &count));
    CHECK(count == 2);
    const zkl_participant *first = NULL, *second = NULL, *same = NULL;
    OK(zkl_op_participant(all, 0, &first));
    OK(zkl_op_participant(all, 1, &second));
    OK(zkl_op_participant(all, 0, &same));
    CHECK(same == first);
    EXPECT(ZKL_E_INVALID, zkl_op_participant(all, 2, &same));
    EXPECT_MESSAGE("index is 2; expected less than 2");
    CHECK(same == first);
    zkl_op_free(waits);
    OK(zkl_hold_release(reader));
    zkl_lock_free(read);
    zkl_lock_free(write);
    zkl_lock_free(other_read);
    zkl_lock_free(other_write);
    CHECK(first->size == sizeof *first && first->holds == 1 && second->holds == 0);
    CHECK(strncmp(first->node_path, path, strlen(path)) == 0 && first->czxid > 0 && first->czxid < second->czxid);
    CHECK(first->session_id == zkl_client_session_id(client));
    CHECK(first->data_len == 6 && memcmp(first->data, "reader", 7) == 0);
    zkl_op_free(readers);
    zkl_op_free(all);
}

static void count_revocation(void *user, zkl_lock *lock)
{
    (void)lock;
    atomic_fetch_add((atomic_int *)user, 1);
}

static void a_revocation_is_an_operation(void)
{
    atomic_int revocations = 0;
    zkl_lock *lock = new_mutex(client, fresh_path());
    OK(zkl_set_revocable(lock, count_revocation, &revocations, NULL));
    OK(zkl_acquire(lock));
    char node[256];
    size_t needed;
    OK(zkl_lock_node_path(lock, node, sizeof node, &needed));
    zkl_op *op = NULL;
    OK(zkl_revoke_start(client, node, &op));
    succeed(op);
    AWAIT(atomic_load(&revocations) == 1);
    OK(zkl_release(lock));
    zkl_lock_free(lock);
}

static void a_token_is_checked_as_an_operation(void)
{
    const char *path = fresh_path();
    zkl_lock *lock = new_mutex(client, path);
    int64_t token = 0;
    zkl_op *op = NULL;
    OK(zkl_acquire(lock));
    OK(zkl_fencing_token(lock, &token));
    OK(zkl_fence_check_start(client, path, token, &op));
    CHECK(value_of(op) == 1);
    OK(zkl_release(lock));
    OK(zkl_fence_check_start(client, path, token, &op));
    CHECK(value_of(op) == 0);
    EXPECT(ZKL_E_INVALID, zkl_fence_check_start(client, path, 0, &op));
    EXPECT_MESSAGE("token is 0");
    zkl_lock_free(lock);
}

static void a_shared_count_is_read_and_set_as_an_operation(void)
{
    const char *path = fresh_path();
    zkl_op *op = NULL;
    int64_t value = -7;
    OK(zkl_shared_count_get_start(client, path, &op));
    CHECK(end(op) == ZKL_E_SERVER);
    EXPECT(ZKL_E_SERVER, zkl_op_value(op, &value));
    zkl_op_free(op);
    OK(zkl_shared_count_set_start(client, path, -5, &op));
    OK(end(op));
    EXPECT(ZKL_E_INVALID, zkl_op_value(op, &value));
    EXPECT_MESSAGE("the operation has no value");
    CHECK(value == -7);
    zkl_op_free(op);
    OK(zkl_shared_count_get_start(client, path, &op));
    CHECK(value_of(op) == -5);
}

static void a_counted_semaphore_is_made_as_an_operation(void)
{
    char count[64];
    snprintf(count, sizeof count, "%s", fresh_path());
    zkl_op *op = NULL;
    OK(zkl_semaphore_new_counted_start(client, fresh_path(), count, 2, &op));
    OK(end(op));
    zkl_semaphore *semaphore = NULL, *again = NULL;
    OK(zkl_op_semaphore(op, &semaphore));
    EXPECT(ZKL_E_INVALID, zkl_op_semaphore(op, &again));
    EXPECT_MESSAGE("the semaphore of this operation was already taken");
    CHECK(again == NULL);
    zkl_op_free(op);
    zkl_hold *leases = NULL;
    OK(zkl_semaphore_acquire_timeout(semaphore, 2, SOON, &leases));
    OK(zkl_hold_release(leases));
    zkl_semaphore_free(semaphore);
    /* The library frees a semaphore that the program does not take. */
    OK(zkl_semaphore_new_counted_start(client, fresh_path(), count, 2, &op));
    succeed(op);
}

/* An accessor refuses the operations of other functions, and does not accept the hold of an acquire. */
static void accessors_refuse_other_operations(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    zkl_op *acquire = NULL, *release = NULL;
    OK(zkl_acquire_start(lock, 7, SOON, &acquire));
    CHECK(is_readable(zkl_op_fd(acquire), SOON));
    zkl_client *no_client = NULL;
    zkl_semaphore *no_semaphore = NULL;
    zkl_hold *no_leases = NULL;
    const zkl_participant *no_participant = NULL;
    int64_t value = -7;
    EXPECT(ZKL_E_INVALID, zkl_op_value(acquire, &value));
    EXPECT_MESSAGE("the operation has no value; expected an operation that reads a shared count");
    EXPECT(ZKL_E_INVALID, zkl_op_participant(acquire, 0, &no_participant));
    EXPECT_MESSAGE("the operation has no participants; expected an operation that lists participants");
    EXPECT(ZKL_E_INVALID, zkl_op_client(acquire, &no_client));
    EXPECT_MESSAGE("the operation has no client; expected an operation that connects a client");
    EXPECT(ZKL_E_INVALID, zkl_op_semaphore(acquire, &no_semaphore));
    EXPECT_MESSAGE("the operation has no semaphore; expected an operation that makes a semaphore");
    CHECK(zkl_is_held_in_process(lock) == 1);
    zkl_op_free(acquire);
    CHECK(zkl_is_held_in_process(lock) == 0);
    OK(zkl_hold_release_start(acquire_hold(lock, 7), &release));
    OK(end(release));
    EXPECT(ZKL_E_INVALID, zkl_op_hold(release, &no_leases));
    EXPECT_MESSAGE("the operation has no hold; expected an operation that acquires a lock or leases");
    EXPECT(ZKL_E_INVALID, zkl_op_client(release, &no_client));
    EXPECT(ZKL_E_INVALID, zkl_op_participant(release, 0, &no_participant));
    zkl_op_free(release);
    CHECK(no_client == NULL && no_semaphore == NULL && no_leases == NULL && no_participant == NULL && value == -7);
    zkl_lock_free(lock);
}

static void *wait_until_freed(void *op)
{
    zkl_status status = zkl_op_wait(op, -1);
    CHECK(status == ZKL_E_CLOSED || status == ZKL_E_HANDLE);
    return NULL;
}

/* A frozen server does not answer. The request ends within the session timeout, and freeing its operation ends all waits. */
static void requests_end_although_the_server_is_silent(void)
{
    zkl_standalone *server = NULL;
    zkl_config *config = zkl_config_new();
    zkl_client *own = NULL;
    CHECK(zkl_standalone_start(NULL, &server) == ZKL_OK);
    OK(zkl_config_set_session_timeout_ms(config, 4000));
    OK(zkl_client_new(zkl_standalone_address(server), config, &own));
    zkl_config_free(config);
    zkl_lock *lock = new_mutex(own, "/silent");
    CHECK(zkl_standalone_freeze(server, 0) == ZKL_OK);
    zkl_op *freed = NULL, *late = NULL;
    int64_t began = now_ms();
    OK(zkl_participants_start(lock, &late));
    OK(zkl_participants_start(lock, &freed));
    EXPECT(ZKL_E_PENDING, zkl_op_result(freed));
    EXPECT_MESSAGE("is still running");
    EXPECT(ZKL_E_PENDING, zkl_op_wait(freed, 10));
    /* A query cannot be canceled. */
    OK(zkl_op_cancel(freed));
    EXPECT(ZKL_E_PENDING, zkl_op_result(freed));
    int64_t value = -7;
    EXPECT(ZKL_E_PENDING, zkl_op_value(freed, &value));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_until_freed, freed) == 0);
    sleep_ms(50);
    zkl_op_free(freed);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(end(late) == ZKL_E_CONNECTION);
    CHECK(now_ms() - began <= 4000 + slack_ms());
    zkl_op_free(late);
    zkl_lock_free(lock);
    zkl_client_free(own);
    zkl_standalone_stop(server);
}

/* Callbacks. */

struct gate {
    atomic_int entered, may_return, drops;
    zkl_client *client;
    zkl_op *op;
    zkl_status waited;
};

static void wait_at_gate(void *user, const zkl_event *event)
{
    struct gate *gate = user;
    if (event->kind != ZKL_EVENT_LOCK || event->state != ZKL_LOCK_HELD) return;
    atomic_store(&gate->entered, 1);
    AWAIT(atomic_load(&gate->may_return));
}

static void drop_gate(void *user)
{
    atomic_fetch_add(&((struct gate *)user)->drops, 1);
}

static zkl_client *client_with(zkl_event_cb cb, void *user, zkl_user_drop drop, int polls)
{
    zkl_config *config = zkl_config_new();
    zkl_client *own = NULL;
    OK(zkl_config_set_event_callback(config, cb, user, drop));
    OK(zkl_config_set_poll_events(config, polls));
    OK(zkl_client_new(servers, config, &own));
    zkl_config_free(config);
    return own;
}

/* This thread closes a client while a callback of the client needs this thread. zkl_client_free would wait forever. */
static void closing_and_freeing_do_not_wait_for_a_callback(void)
{
    for (int frees = 0; frees < 2; frees++) {
        struct gate gate = {0};
        zkl_client *own = client_with(wait_at_gate, &gate, drop_gate, 0);
        zkl_lock *lock = new_mutex(own, fresh_path());
        zkl_op *op = NULL;
        OK(zkl_acquire(lock));
        AWAIT(atomic_load(&gate.entered));
        if (frees) {
            zkl_client_free_nowait(own);
            EXPECT(ZKL_E_HANDLE, zkl_client_state(own));
            CHECK(atomic_load(&gate.drops) == 0);
        } else {
            OK(zkl_client_close_start(own, &op));
            EXPECT(ZKL_E_PENDING, zkl_op_wait(op, 10));
            CHECK(zkl_client_state(own) >= 0);
        }
        EXPECT(ZKL_E_CLOSED, zkl_acquire(lock));
        zkl_lock *none = NULL;
        EXPECT(frees ? ZKL_E_HANDLE : ZKL_E_CLOSED, zkl_mutex_new(own, "/a", &none));
        CHECK(none == NULL);
        if (frees) {
            /* The free of the last handle of a client that is closing does not wait for its callback. */
            int64_t began = now_ms();
            zkl_lock_free(lock);
            CHECK(now_ms() - began < slack_ms());
        }
        atomic_store(&gate.may_return, 1);
        if (!frees) {
            succeed(op);
            CHECK(atomic_load(&gate.drops) == 1);
            /* A second close of a closed client also ends. */
            OK(zkl_client_close_start(own, &op));
            succeed(op);
            zkl_client_free(own);
        }
        AWAIT(atomic_load(&gate.drops) == 1);
        if (!frees) zkl_lock_free(lock);
    }
}

static atomic_int freed_count;

static void *free_client(void *own)
{
    zkl_client_free(own);
    atomic_fetch_add(&freed_count, 1);
    return NULL;
}

/* zkl_client_free returns only after the callback, even if another thread closes the client, and longer than closing may take. */
static void freeing_waits_for_a_callback_of_a_client_that_is_closing(void)
{
    struct gate gate = {0};
    zkl_client *own = client_with(wait_at_gate, &gate, drop_gate, 0);
    zkl_lock *lock = new_mutex(own, fresh_path());
    zkl_op *op = NULL;
    OK(zkl_acquire(lock));
    AWAIT(atomic_load(&gate.entered));
    OK(zkl_client_close_start(own, &op));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, free_client, own) == 0);
    EXPECT(ZKL_E_PENDING, zkl_op_wait(op, 2500));
    CHECK(atomic_load(&freed_count) == 0);
    atomic_store(&gate.may_return, 1);
    CHECK(pthread_join(thread, NULL) == 0);
    succeed(op);
    CHECK(atomic_load(&gate.drops) == 1);
    zkl_lock_free(lock);
}

/* The end of the session frees the lock for other clients, although no thread waits for the end. */
static void a_client_that_is_freed_in_the_background_ends_its_session(void)
{
    const char *path = fresh_path();
    zkl_client *own = new_client();
    zkl_lock *lock = new_mutex(own, path), *mine = new_mutex(client, path);
    OK(zkl_acquire(lock));
    zkl_client_free_nowait(own);
    OK(zkl_acquire_timeout(mine, SOON));
    OK(zkl_release(mine));
    zkl_lock_free(mine);
    zkl_lock_free(lock);
    EXPECT_MESSAGE_UNCHANGED(zkl_client_free_nowait(NULL));
    EXPECT_MESSAGE_UNCHANGED(zkl_client_free_nowait(own));
    /* A client that is closing can be freed at once. */
    zkl_op *op = NULL;
    own = new_client();
    OK(zkl_client_close_start(own, &op));
    zkl_client_free_nowait(own);
    zkl_op_free(op);
}

static void close_own_client(void *user, const zkl_event *event)
{
    struct gate *gate = user;
    if (event->kind != ZKL_EVENT_LOCK || event->state != ZKL_LOCK_HELD) return;
    OK(zkl_client_close_start(gate->client, &gate->op));
    /* The operation waits for this callback, so this callback must not wait for the operation. */
    EXPECT(ZKL_E_PENDING, zkl_op_wait(gate->op, 0));
    gate->waited = zkl_op_wait(gate->op, 100);
    atomic_store(&gate->entered, 1);
}

static void a_callback_may_close_its_client_and_may_not_wait_for_the_end(void)
{
    struct gate gate = {0};
    gate.client = client_with(close_own_client, &gate, drop_gate, 0);
    zkl_lock *lock = new_mutex(gate.client, fresh_path());
    OK(zkl_acquire(lock));
    AWAIT(atomic_load(&gate.entered));
    CHECK(gate.waited == ZKL_E_DEADLOCK);
    succeed(gate.op);
    zkl_client_free(gate.client);
    CHECK(atomic_load(&gate.drops) == 1);
    zkl_lock_free(lock);
}

struct recorder {
    pthread_t thread;
    int events, losses, drops;
    zkl_event last;
};

static void record(void *user, const zkl_event *event)
{
    struct recorder *recorder = user;
    CHECK(pthread_equal(recorder->thread, pthread_self()) && recorder->drops == 0);
    recorder->events++;
    recorder->losses += event->kind == ZKL_EVENT_LOCK && event->state == ZKL_LOCK_FREE;
    recorder->last = *event;
}

static void record_drop(void *user)
{
    struct recorder *recorder = user;
    CHECK(pthread_equal(recorder->thread, pthread_self()));
    recorder->drops++;
}

/* If the program polls, all callbacks and user_drop functions of a closing client run on program threads. */
static void a_closing_client_that_is_polled_calls_nothing_on_other_threads(void)
{
    struct recorder recorder = {.thread = pthread_self()}, loss = {.thread = pthread_self()};
    zkl_client *own = client_with(record, &recorder, record_drop, 1);
    zkl_lock *lock = new_mutex(own, fresh_path()), *other = NULL;
    zkl_listener *listener = NULL;
    OK(zkl_lock_listen(lock, ZKL_LISTEN_LOSS, record, &loss, record_drop, &listener));
    OK(zkl_acquire(lock));
    CHECK(dispatch(own) == 2);
    int fd = fcntl(zkl_client_event_fd(own), F_DUPFD_CLOEXEC, 0);
    zkl_op *op = NULL;
    OK(zkl_client_close_start(own, &op));
    CHECK(is_readable(fd, SOON));
    /* The session ends only after the callback for the loss. */
    EXPECT(ZKL_E_PENDING, zkl_op_result(op));
    CHECK(loss.events == 0);
    while (zkl_op_result(op) == ZKL_E_PENDING) {
        int32_t count = 0;
        zkl_status status = zkl_client_dispatch_events(own, &count);
        CHECK(status == ZKL_OK || status == ZKL_E_CLOSED);
        zkl_op_wait(op, 5);
    }
    OK(zkl_op_result(op));
    CHECK(loss.losses == 1 && loss.last.token > 0);
    CHECK(recorder.last.kind == ZKL_EVENT_CLIENT && recorder.last.state == ZKL_STATE_CLOSED);
    EXPECT(ZKL_E_CLOSED, zkl_client_dispatch_events(own, &(int32_t){0}));
    CHECK(zkl_client_event_fd(own) == ZKL_E_CLOSED);
    CHECK(recorder.drops == 0 && loss.drops == 0);
    zkl_client_free(own);
    CHECK(recorder.drops == 1 && loss.drops == 1);
    zkl_op_free(op);
    zkl_listener_free(listener);
    zkl_lock_free(lock);
    close(fd);

    /* Without a dispatch, the client still closes within its time limit. */
    recorder = (struct recorder){.thread = pthread_self()};
    own = client_with(record, &recorder, record_drop, 1);
    other = new_mutex(own, fresh_path());
    int64_t began = now_ms();
    OK(zkl_client_close_start(own, &op));
    succeed(op);
    CHECK(now_ms() - began <= 2000 + slack_ms() && recorder.events == 0 && recorder.drops == 0);
    zkl_client_free_nowait(own);
    CHECK(recorder.events == 0 && recorder.drops == 1);
    zkl_lock_free(other);
}

/* Many operations in flight on one thread. */
static void many_requests_run_at_the_same_time(void)
{
    enum { COUNT = 200 };
    zkl_op *ops[COUNT];
    const char *path = fresh_path();
    OK(zkl_shared_count_set(client, path, 0));
    for (int i = 0; i < COUNT; i++) {
        if (i % 2 == 0) {
            OK(zkl_shared_count_set_start(client, path, i, &ops[i]));
        } else {
            OK(zkl_shared_count_get_start(client, path, &ops[i]));
        }
    }
    for (int i = 0; i < COUNT; i++) {
        if (i % 2 == 0) {
            succeed(ops[i]);
        } else {
            CHECK(value_of(ops[i]) >= 0);
        }
    }
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    CHECK(zkl_version_number() == ZKL_VERSION_NUMBER);
    CHECK(ZKL_VERSION_NUMBER == ZKL_VERSION_MAJOR * 10000 + ZKL_VERSION_MINOR * 100 + ZKL_VERSION_PATCH);
    client = new_client();
    RUN(a_client_connects_as_an_operation);
    RUN(a_client_that_reaches_no_server_fails_at_its_timeout);
    RUN(a_connect_can_be_canceled_and_freed);
    RUN(a_release_is_an_operation);
    RUN(a_release_of_leases_is_an_operation);
    RUN(participants_come_from_the_operation);
    RUN(a_revocation_is_an_operation);
    RUN(a_token_is_checked_as_an_operation);
    RUN(a_shared_count_is_read_and_set_as_an_operation);
    RUN(a_counted_semaphore_is_made_as_an_operation);
    RUN(accessors_refuse_other_operations);
    RUN(requests_end_although_the_server_is_silent);
    RUN(closing_and_freeing_do_not_wait_for_a_callback);
    RUN(freeing_waits_for_a_callback_of_a_client_that_is_closing);
    RUN(a_client_that_is_freed_in_the_background_ends_its_session);
    RUN(a_callback_may_close_its_client_and_may_not_wait_for_the_end);
    RUN(a_closing_client_that_is_polled_calls_nothing_on_other_threads);
    RUN(many_requests_run_at_the_same_time);
    zkl_client_free(client);
    return 0;
}
