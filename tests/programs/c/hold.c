/* Holds: every recipe gives one, any thread may use and release it, and it refers only to its own acquire. */
#include "check.h"

#include <stdatomic.h>
#include <zklock_standalone.h>

enum { SOON = 60000, TASK = 7 };

static zkl_client *client;

static zkl_hold_info view(const zkl_hold *hold)
{
    zkl_hold_info info = {.size = sizeof info};
    OK(zkl_hold_view(hold, &info));
    return info;
}

static void *release_hold(void *hold)
{
    return zkl_hold_release(hold) == ZKL_OK ? NULL : hold;
}

/* Releases a hold on a new thread. */
static void release_elsewhere(zkl_hold *hold)
{
    pthread_t thread;
    void *failed = hold;
    CHECK(pthread_create(&thread, NULL, release_hold, hold) == 0 && pthread_join(thread, &failed) == 0);
    CHECK(failed == NULL);
}

/* A hold of each kind of lock answers every question, and another thread releases it. */
static void a_hold_of_each_recipe(void)
{
    const char *path = fresh_path();
    char first[64], node[256];
    snprintf(first, sizeof first, "%s", path);
    zkl_lock *one = new_mutex(client, first), *two = new_mutex(client, fresh_path()), *read = NULL, *write = NULL;
    OK(zkl_rwlock_new(client, fresh_path(), &read, &write));
    zkl_lock *locks[] = {new_mutex(client, fresh_path()), new_semaphore_mutex(client, fresh_path()), read, write, new_multi(one, two)};
    for (size_t i = 0; i < sizeof locks / sizeof *locks; i++) {
        zkl_hold *hold = acquire_hold(locks[i], ZKL_OWNER_NEW);
        zkl_hold_info info = view(hold);
        size_t needed = 0;
        CHECK(info.size == sizeof info && info.state == ZKL_LOCK_HELD && info.token > 0 && info.fencing_pass == 0);
        CHECK(info.remaining_ms > 0 && zkl_hold_is_held(hold) == 1);
        OK(zkl_hold_node_path(hold, 0, node, sizeof node, &needed));
        CHECK(needed == strlen(node) + 1);
        EXPECT(ZKL_E_INVALID, zkl_hold_node_path(hold, 2, node, sizeof node, &needed));
        EXPECT(ZKL_E_TIMEOUT, zkl_hold_wait_lost(hold, 0));
        /* The hold belongs to no thread. */
        CHECK(zkl_is_held(locks[i]) == 0 && zkl_is_held_in_process(locks[i]) == 1);
        if (locks[i] != read) EXPECT(ZKL_E_TIMEOUT, zkl_acquire_timeout(locks[i], 0));
        release_elsewhere(hold);
        EXPECT(ZKL_E_HANDLE, zkl_hold_release(hold));
        EXPECT_NOT_SAFE(zkl_hold_is_held(hold), "was freed; expected a hold");
        OK(zkl_hold_acquire(locks[i], ZKL_OWNER_NEW, 0, &hold));
        CHECK(view(hold).token > info.token);
        OK(zkl_hold_release_nowait(hold));
        zkl_lock_free(locks[i]);
    }
    zkl_lock_free(one);
    zkl_lock_free(two);
}

/* The view tells a later program which fields the library knows. */
static void a_view_has_a_size(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    zkl_hold *hold = acquire_hold(lock, ZKL_OWNER_NEW);
    struct {
        zkl_hold_info info;
        int64_t later;
    } newer = {.info.size = sizeof newer, .later = -7};
    OK(zkl_hold_view(hold, &newer.info));
    CHECK(newer.info.size == sizeof newer.info && newer.info.remaining_ms > 0 && newer.later == -7);
    zkl_hold_info none = {.size = sizeof none - 1, .state = -7};
    EXPECT(ZKL_E_INVALID, zkl_hold_view(hold, &none));
    EXPECT_MESSAGE("size of info_out is 31; expected the sizeof of the struct, at least 32");
    CHECK(none.state == -7);
    OK(zkl_hold_release(hold));
    zkl_lock_free(lock);
}

/* An owner with a number enters its lock again, and has two holds of one node. */
static void an_owner_enters_again(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    zkl_hold *outer = acquire_hold(lock, TASK), *inner = acquire_hold(lock, TASK), *other = NULL;
    CHECK(view(outer).token == view(inner).token);
    EXPECT(ZKL_E_TIMEOUT, zkl_hold_acquire(lock, TASK + 1, 0, &other));
    EXPECT(ZKL_E_TIMEOUT, zkl_hold_acquire(lock, ZKL_OWNER_NEW, 0, &other));
    OK(zkl_hold_release(outer));
    CHECK(zkl_hold_is_held(inner) == 1 && zkl_is_held_in_process(lock) == 1);
    OK(zkl_hold_release(inner));
    CHECK(zkl_is_held_in_process(lock) == 0);
    OK(zkl_hold_acquire(lock, ZKL_OWNER_NEW, 0, &other));
    OK(zkl_hold_release(other));
    zkl_lock_free(lock);
}

/* The calling thread as an owner has one hold count in both forms. */
static void the_thread_is_an_owner(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    OK(zkl_acquire(lock));
    zkl_hold *hold = acquire_hold(lock, ZKL_OWNER_THREAD);
    OK(zkl_release(lock));
    CHECK(zkl_is_held(lock) == 1 && zkl_hold_is_held(hold) == 1);
    OK(zkl_hold_release(hold));
    CHECK(zkl_is_held(lock) == 0);
    /* If the lock has released the hold, the handle releases nothing. */
    hold = acquire_hold(lock, ZKL_OWNER_THREAD);
    OK(zkl_release(lock));
    CHECK(view(hold).state == ZKL_LOCK_FREE && zkl_hold_is_held(hold) == 0);
    OK(zkl_acquire(lock));
    EXPECT(ZKL_E_NOT_OWNER, zkl_hold_release(hold));
    CHECK(zkl_is_held(lock) == 1);
    OK(zkl_release(lock));
    zkl_lock_free(lock);
}

static zkl_op *start(zkl_lock *lock, uint64_t owner)
{
    zkl_op *op = NULL;
    OK(zkl_acquire_start(lock, owner, SOON, &op));
    OK(zkl_op_wait(op, -1));
    return op;
}

/* The program takes the hold of an operation once. An operation that is freed before releases its hold, unless the hold belongs to
 * the thread. */
static void an_operation_gives_its_hold(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    uint64_t owners[] = {ZKL_OWNER_NEW, TASK, ZKL_OWNER_THREAD};
    for (int i = 0; i < 3; i++) {
        zkl_op *op = start(lock, owners[i]);
        zkl_hold *hold = NULL, *again = NULL;
        OK(zkl_op_hold(op, &hold));
        EXPECT(ZKL_E_INVALID, zkl_op_hold(op, &again));
        EXPECT_MESSAGE("already taken");
        zkl_op_free(op);
        CHECK(zkl_hold_is_held(hold) == 1);
        release_elsewhere(hold);
        CHECK(zkl_is_held_in_process(lock) == 0);
    }
    for (int i = 0; i < 2; i++) {
        zkl_op_free(start(lock, owners[i]));
        AWAIT(zkl_is_held_in_process(lock) == 0);
    }
    zkl_op_free(start(lock, ZKL_OWNER_THREAD));
    CHECK(zkl_is_held(lock) == 1);
    OK(zkl_release(lock));
    zkl_hold *held = acquire_hold(lock, ZKL_OWNER_NEW), *none = NULL;
    zkl_op *failed = NULL;
    OK(zkl_acquire_start(lock, ZKL_OWNER_NEW, LIMIT_MS, &failed));
    EXPECT(ZKL_E_PENDING, zkl_op_hold(failed, &none));
    EXPECT(ZKL_E_TIMEOUT, zkl_op_wait(failed, -1));
    EXPECT(ZKL_E_TIMEOUT, zkl_op_hold(failed, &none));
    zkl_op_free(failed);
    OK(zkl_hold_release(held));
    zkl_lock_free(lock);
}

static atomic_int losses;

static void on_loss(void *user, const zkl_event *event)
{
    CHECK(event->lock == NULL && event->token == *(const int64_t *)user);
    atomic_fetch_add(&losses, 1);
}

/* A lost hold keeps its token, and reports its loss in every way. Its lock can be held again meanwhile. */
static void a_lost_hold_speaks_only_of_itself(void)
{
    zkl_standalone *server = NULL;
    CHECK(zkl_standalone_start(NULL, &server) == ZKL_OK);
    zkl_client *other = NULL;
    OK(zkl_client_new(zkl_standalone_address(server), NULL, &other));
    zkl_lock *lock = new_mutex(other, "/lost");
    zkl_hold *hold = acquire_hold(lock, ZKL_OWNER_NEW);
    int64_t token = view(hold).token;
    zkl_listener *listener = NULL;
    OK(zkl_hold_listen(hold, ZKL_LISTEN_LOSS, on_loss, &token, NULL, &listener));
    zkl_op *waiting = NULL;
    OK(zkl_hold_wait_lost_start(hold, &waiting));
    CHECK(zkl_standalone_expire(server, zkl_client_session_id(other)) == ZKL_OK);
    EXPECT(ZKL_E_LOST, zkl_hold_wait_lost(hold, SOON));
    EXPECT(ZKL_E_LOST, zkl_op_wait(waiting, SOON));
    zkl_op_free(waiting);
    AWAIT(hold_state(hold) == ZKL_LOCK_LOST);
    AWAIT(atomic_load(&losses) == 1);
    zkl_hold *next = acquire_hold(lock, ZKL_OWNER_NEW);
    zkl_hold_info lost = view(hold), held = view(next);
    CHECK(lost.state == ZKL_LOCK_LOST && lost.token == token && lost.remaining_ms == 0 && zkl_hold_is_held(hold) == 0);
    CHECK(held.state == ZKL_LOCK_HELD && held.token > token);
    char node[256];
    size_t needed;
    EXPECT(ZKL_E_LOST, zkl_hold_node_path(hold, 0, node, sizeof node, &needed));
    EXPECT(ZKL_E_LOST, zkl_hold_release(hold));
    CHECK(zkl_hold_is_held(next) == 1 && atomic_load(&losses) == 1);
    OK(zkl_hold_release(next));
    zkl_listener_free(listener);
    /* The end of the client ends the hold. */
    hold = acquire_hold(lock, ZKL_OWNER_NEW);
    zkl_client_free(other);
    EXPECT(ZKL_E_CLOSED, hold_state(hold));
    EXPECT_NOT_SAFE(zkl_hold_is_held(hold), zkl_strerror(ZKL_E_CLOSED));
    EXPECT(ZKL_E_CLOSED, zkl_hold_release(hold));
    EXPECT(ZKL_E_HANDLE, zkl_hold_release(hold));
    zkl_lock_free(lock);
    zkl_standalone_stop(server);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    client = new_client();
    RUN(a_hold_of_each_recipe);
    RUN(a_view_has_a_size);
    RUN(an_owner_enters_again);
    RUN(the_thread_is_an_owner);
    RUN(an_operation_gives_its_hold);
    RUN(a_lost_hold_speaks_only_of_itself);
    zkl_client_free(client);
    return 0;
}
