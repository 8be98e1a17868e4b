/* Every misuse returns a status, sets an error message, changes nothing, and does not crash. */
#include "check.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { BAD = 14 };

static zkl_config *config;
static zkl_client *client;
static zkl_lock *lock;
static zkl_semaphore *semaphore;
static zkl_hold *leases;
static zkl_lock *owned;
static zkl_op *op;
static zkl_listener *listener;

/* Values that are not a live handle of a kind. */
struct bad {
    void *handles[BAD];
    int count;
};

static void add(struct bad *bad, const void *handle)
{
    CHECK(bad->count < BAD);
    bad->handles[bad->count++] = (void *)(uintptr_t)handle;
}

static struct bad garbage(void)
{
    static int ours;
    struct bad bad = {{NULL}, 0};
    add(&bad, NULL);
    add(&bad, (void *)(uintptr_t)1);
    add(&bad, (void *)(uintptr_t)0xdeadbeef);
    add(&bad, (void *)(uintptr_t)0x1234567812345678);
    add(&bad, (void *)UINTPTR_MAX);
    add(&bad, &ours);
    return bad;
}

/* A handle of a slot that was never used, and one of a generation that does not exist yet. */
static void add_relatives(struct bad *bad, const void *live)
{
    add(bad, (void *)((uintptr_t)live + 1000));
    add(bad, (void *)((uintptr_t)live + ((uintptr_t)1 << 24)));
}

static struct bad bad_configs(void)
{
    struct bad bad = garbage();
    zkl_config *freed = zkl_config_new();
    zkl_config_free(freed);
    add(&bad, freed);
    add(&bad, client);
    add(&bad, lock);
    add_relatives(&bad, config);
    return bad;
}

static struct bad bad_clients(void)
{
    struct bad bad = garbage();
    zkl_client *freed = new_client();
    zkl_client_free(freed);
    add(&bad, freed);
    add(&bad, config);
    add(&bad, lock);
    add_relatives(&bad, client);
    return bad;
}

static struct bad bad_locks(void)
{
    struct bad bad = garbage();
    zkl_lock *freed = new_mutex(client, fresh_path());
    zkl_lock_free(freed);
    add(&bad, freed);
    add(&bad, config);
    add(&bad, client);
    add_relatives(&bad, lock);
    return bad;
}

static struct bad bad_semaphores(void)
{
    struct bad bad = garbage();
    zkl_semaphore *freed = new_semaphore(client, fresh_path(), 1);
    zkl_semaphore_free(freed);
    add(&bad, freed);
    add(&bad, client);
    add(&bad, lock);
    add(&bad, leases);
    add_relatives(&bad, semaphore);
    return bad;
}

static struct bad bad_leases(void)
{
    struct bad bad = garbage();
    zkl_hold *released = NULL;
    OK(zkl_semaphore_acquire_timeout(semaphore, 1, 60000, &released));
    OK(zkl_hold_release(released));
    add(&bad, released);
    add(&bad, client);
    add(&bad, lock);
    add(&bad, semaphore);
    add_relatives(&bad, leases);
    return bad;
}

static struct bad bad_ops(void)
{
    struct bad bad = garbage();
    zkl_op *freed = NULL;
    OK(zkl_acquire_start(owned, 1, 0, &freed));
    zkl_op_free(freed);
    add(&bad, freed);
    add(&bad, client);
    add(&bad, lock);
    add(&bad, leases);
    add_relatives(&bad, op);
    return bad;
}

static void on_event(void *user, const zkl_event *unused)
{
    (void)user;
    (void)unused;
}

static struct bad bad_listeners(void)
{
    struct bad bad = garbage();
    zkl_listener *freed = NULL;
    OK(zkl_client_listen(client, on_event, NULL, NULL, &freed));
    zkl_listener_free(freed);
    add(&bad, freed);
    add(&bad, client);
    add(&bad, lock);
    add(&bad, op);
    add_relatives(&bad, listener);
    return bad;
}

static void on_revocation(void *user, zkl_lock *unused)
{
    (void)user;
    (void)unused;
}

static void on_semaphore_revocation(void *user, zkl_semaphore *unused)
{
    (void)user;
    (void)unused;
}

static void must_not_drop(void *user)
{
    (void)user;
    CHECK(0);
}

/* Checks that the message names the handle and the expected kind. */
static void expect_handle_message(const void *handle, const char *expected)
{
    char value[32];
    snprintf(value, sizeof value, handle == NULL ? "NULL" : "%#" PRIxPTR, (uintptr_t)handle);
    EXPECT_MESSAGE(value);
    EXPECT_MESSAGE(expected);
}

#define REFUSES(call)                                                                                                          \
    do {                                                                                                                       \
        EXPECT(ZKL_E_HANDLE, call);                                                                                            \
        expect_handle_message(bad, expected);                                                                                  \
    } while (0)

/* Checks that a predicate on an invalid handle returns false and sets a message. The call before has set another message. */
#define DENIES(call)                                                                                                           \
    do {                                                                                                                       \
        EXPECT(ZKL_E_INVALID, zkl_acquire_timeout(lock, -2));                                                                  \
        CHECK((call) == 0);                                                                                                    \
        expect_handle_message(bad, expected);                                                                                  \
    } while (0)

/* Calls with an invalid config handle fail with HANDLE and change nothing. */
static void wrong_configs(void)
{
    struct bad all = bad_configs();
    const char *expected = "a config";
    for (int i = 0; i < all.count; i++) {
        zkl_config *bad = all.handles[i];
        zkl_client *out = (zkl_client *)&all;
        REFUSES(zkl_config_set_session_timeout_ms(bad, 1000));
        REFUSES(zkl_config_set_connect_timeout_ms(bad, 1000));
        REFUSES(zkl_config_set_lease_margin_ms(bad, 1000));
        REFUSES(zkl_config_add_auth(bad, "digest", "a:b", 3));
        REFUSES(zkl_config_set_auth_callback(bad, "digest", NULL, NULL, NULL));
        REFUSES(zkl_config_set_wait_for_kazoo(bad, 1));
        REFUSES(zkl_config_set_poll_events(bad, 1));
        REFUSES(zkl_config_set(bad, "lease.margin", "1000"));
        REFUSES(zkl_config_load(bad, "/dev/null"));
        zkl_config_free(bad);
        if (bad == NULL) {
            continue; /* NULL stands for the default config. */
        }
        expect_handle_message(bad, expected);
        REFUSES(zkl_client_new(servers, bad, &out));
        zkl_op *started = (zkl_op *)&all;
        REFUSES(zkl_client_start(servers, bad, &started));
        CHECK(started == (zkl_op *)&all);
        CHECK(out == (zkl_client *)&all);
    }
}

/* Calls with an invalid client handle fail with HANDLE and change nothing. */
static void wrong_clients(void)
{
    struct bad all = bad_clients();
    const char *expected = "a client";
    for (int i = 0; i < all.count; i++) {
        zkl_client *bad = all.handles[i];
        zkl_lock *out = (zkl_lock *)&all;
        int32_t value = -7;
        REFUSES(zkl_client_dispatch_events(bad, &value));
        zkl_listener *listener_out = (zkl_listener *)&all;
        REFUSES(zkl_client_listen(bad, on_event, &value, must_not_drop, &listener_out));
        REFUSES(zkl_client_set_event_callback(bad, on_event, &value, must_not_drop));
        CHECK(listener_out == (zkl_listener *)&all);
        REFUSES(zkl_client_event_fd(bad));
        REFUSES(zkl_client_set_servers(bad, servers));
        REFUSES(zkl_client_state(bad));
        CHECK(zkl_client_session_id(bad) == 0);
        expect_handle_message(bad, expected);
        REFUSES(zkl_mutex_new(bad, "/a", &out));
        zkl_lock *write_out = (zkl_lock *)&all;
        zkl_semaphore *semaphore_out = (zkl_semaphore *)&all;
        REFUSES(zkl_semaphore_mutex_new(bad, "/a", &out));
        REFUSES(zkl_rwlock_new(bad, "/a", &out, &write_out));
        REFUSES(zkl_semaphore_new(bad, "/a", 1, &semaphore_out));
        REFUSES(zkl_semaphore_new_counted(bad, "/a", "/b", 1, &semaphore_out));
        REFUSES(zkl_shared_count_get(bad, "/a", &value));
        REFUSES(zkl_shared_count_set(bad, "/a", 1));
        REFUSES(zkl_revoke(bad, "/a"));
        REFUSES(zkl_fence_check(bad, "/a", 1, &value));
        zkl_op *started = (zkl_op *)&all;
        REFUSES(zkl_client_close_start(bad, &started));
        REFUSES(zkl_semaphore_new_counted_start(bad, "/a", "/b", 1, &started));
        REFUSES(zkl_shared_count_get_start(bad, "/a", &started));
        REFUSES(zkl_shared_count_set_start(bad, "/a", 1, &started));
        REFUSES(zkl_revoke_start(bad, "/a", &started));
        REFUSES(zkl_fence_check_start(bad, "/a", 1, &started));
        CHECK(started == (zkl_op *)&all);
        EXPECT_MESSAGE_UNCHANGED(zkl_client_free_nowait(bad));
        CHECK(out == (zkl_lock *)&all && write_out == (zkl_lock *)&all && value == -7);
        CHECK(semaphore_out == (zkl_semaphore *)&all);
        EXPECT_MESSAGE_UNCHANGED(zkl_client_free(bad));
    }
}

/* Calls with an invalid lock handle fail with HANDLE and change nothing. */
static void wrong_locks(void)
{
    struct bad all = bad_locks();
    const char *expected = "a lock";
    for (int i = 0; i < all.count; i++) {
        zkl_lock *bad = all.handles[i];
        int64_t out = -7;
        REFUSES(zkl_acquire(bad));
        REFUSES(zkl_acquire_timeout(bad, 0));
        REFUSES(zkl_acquire_timeout(bad, -1));
        REFUSES(zkl_release(bad));
        REFUSES(zkl_release_nowait(bad));
        REFUSES(zkl_cancel(bad));
        DENIES(zkl_is_held(bad));
        DENIES(zkl_is_held_in_process(bad));
        REFUSES(zkl_lock_state(bad));
        REFUSES(zkl_fencing_token(bad, &out));
        REFUSES(zkl_lock_state_in_process(bad));
        REFUSES(zkl_wait_lost(bad, -1));
        REFUSES(zkl_fencing_pass(bad, &out));
        REFUSES(zkl_mutex_set_local_handover(bad, 1));
        REFUSES(zkl_remaining_ms(bad, &out));
        REFUSES(zkl_lock_set_data(bad, "x", 1));
        REFUSES(zkl_participants(bad, count_participant, &out));
        REFUSES(zkl_queue(bad, count_participant, &out));
        REFUSES(zkl_waiting(bad, count_wait, &out));
        zkl_lock *locks[] = {lock, bad}, *multi = (zkl_lock *)&all;
        REFUSES(zkl_multi_new(locks, 2, &multi));
        EXPECT_MESSAGE("locks[1]: ");
        CHECK(multi == (zkl_lock *)&all);
        char buf[8] = "-";
        size_t needed = 7;
        REFUSES(zkl_lock_node_path(bad, buf, sizeof buf, &needed));
        CHECK(buf[0] == '-' && needed == 7);
        zkl_listener *listener_out = (zkl_listener *)&all;
        REFUSES(zkl_lock_listen(bad, ZKL_LISTEN_LOSS, on_event, &out, must_not_drop, &listener_out));
        CHECK(listener_out == (zkl_listener *)&all);
        REFUSES(zkl_lock_set_event_callback(bad, on_event, &out, must_not_drop));
        REFUSES(zkl_lock_set_event_callback(bad, NULL, &out, must_not_drop));
        REFUSES(zkl_set_revocable(bad, on_revocation, &out, must_not_drop));
        REFUSES(zkl_set_revocable(bad, NULL, &out, must_not_drop));
        zkl_op *started = (zkl_op *)&all;
        REFUSES(zkl_acquire_start(bad, 1, 0, &started));
        REFUSES(zkl_participants_start(bad, &started));
        REFUSES(zkl_queue_start(bad, &started));
        CHECK(started == (zkl_op *)&all && buf[0] == '-' && needed == 7);
        CHECK(out == -7);
        EXPECT_MESSAGE_UNCHANGED(zkl_lock_free(bad));
    }
}

/* Calls with an invalid semaphore handle fail with HANDLE and change nothing. */
static void wrong_semaphores(void)
{
    struct bad all = bad_semaphores();
    const char *expected = "a semaphore";
    for (int i = 0; i < all.count; i++) {
        zkl_semaphore *bad = all.handles[i];
        zkl_hold *out = (zkl_hold *)&all;
        int count = 0;
        REFUSES(zkl_semaphore_acquire_timeout(bad, 1, 0, &out));
        REFUSES(zkl_semaphore_acquire_timeout(bad, 1, -1, &out));
        zkl_op *started = (zkl_op *)&all;
        REFUSES(zkl_semaphore_acquire_start(bad, 1, 0, &started));
        REFUSES(zkl_semaphore_participants_start(bad, &started));
        CHECK(started == (zkl_op *)&all);
        REFUSES(zkl_semaphore_cancel(bad));
        REFUSES(zkl_semaphore_set_data(bad, "x", 1));
        REFUSES(zkl_semaphore_participants(bad, count_participant, &count));
        REFUSES(zkl_semaphore_waiting(bad, count_wait, &count));
        REFUSES(zkl_semaphore_set_revocable(bad, on_semaphore_revocation, &count, must_not_drop));
        REFUSES(zkl_semaphore_set_revocable(bad, NULL, &count, must_not_drop));
        CHECK(out == (zkl_hold *)&all && count == 0);
        EXPECT_MESSAGE_UNCHANGED(zkl_semaphore_free(bad));
    }
}

/* Calls with an invalid handle of leases fail with HANDLE and change nothing. */
static void wrong_leases(void)
{
    struct bad all = bad_leases();
    const char *expected = "a hold";
    for (int i = 0; i < all.count; i++) {
        zkl_hold *bad = all.handles[i];
        int64_t out = -7;
        char buf[8] = "-";
        size_t needed = 7;
        DENIES(zkl_hold_is_held(bad));
        REFUSES(zkl_hold_wait_lost(bad, -1));
        zkl_listener *listener_out = (zkl_listener *)&all;
        REFUSES(zkl_hold_listen(bad, ZKL_LISTEN_ALL, on_event, &out, must_not_drop, &listener_out));
        CHECK(listener_out == (zkl_listener *)&all);
        zkl_hold_info info = {.size = sizeof info, .state = -7};
        REFUSES(zkl_hold_view(bad, &info));
        CHECK(info.state == -7);
        REFUSES(zkl_hold_node_path(bad, 0, buf, sizeof buf, &needed));
        REFUSES(zkl_hold_release(bad));
        zkl_op *started = (zkl_op *)&all;
        REFUSES(zkl_hold_release_start(bad, &started));
        CHECK(started == (zkl_op *)&all);
        CHECK(out == -7 && buf[0] == '-' && needed == 7);
    }
    CHECK(zkl_hold_is_held(leases) == 1);
}

/* Calls with an invalid operation handle fail with HANDLE and change nothing. */
static void wrong_ops(void)
{
    struct bad all = bad_ops();
    const char *expected = "an operation";
    for (int i = 0; i < all.count; i++) {
        zkl_op *bad = all.handles[i];
        zkl_hold *out = (zkl_hold *)&all;
        REFUSES(zkl_op_fd(bad));
        REFUSES(zkl_op_result(bad));
        EXPECT(ZKL_E_INVALID, zkl_acquire_timeout(lock, -2));
        CHECK(*zkl_op_message(bad) != '\0');
        expect_handle_message(bad, expected);
        REFUSES(zkl_op_wait(bad, 0));
        REFUSES(zkl_op_wait(bad, -1));
        REFUSES(zkl_op_cancel(bad));
        REFUSES(zkl_op_hold(bad, &out));
        int64_t value = -7;
        const zkl_participant *participant = NULL;
        zkl_client *client_out = (zkl_client *)&all;
        zkl_semaphore *semaphore_out = (zkl_semaphore *)&all;
        REFUSES(zkl_op_value(bad, &value));
        REFUSES(zkl_op_participant(bad, 0, &participant));
        REFUSES(zkl_op_client(bad, &client_out));
        REFUSES(zkl_op_semaphore(bad, &semaphore_out));
        CHECK(out == (zkl_hold *)&all && value == -7 && participant == NULL);
        CHECK(client_out == (zkl_client *)&all && semaphore_out == (zkl_semaphore *)&all);
        EXPECT_MESSAGE_UNCHANGED(zkl_op_free(bad));
    }
    CHECK(zkl_is_held_in_process(owned) == 1);
}

/* Freeing an invalid listener handle has no effect. */
static void wrong_listeners(void)
{
    struct bad all = bad_listeners();
    for (int i = 0; i < all.count; i++) EXPECT_MESSAGE_UNCHANGED(zkl_listener_free(all.handles[i]));
    /* The objects of the other handles are unchanged. */
    CHECK(zkl_client_state(client) == ZKL_STATE_CONNECTED && zkl_lock_state(lock) == ZKL_LOCK_FREE);
    OK(zkl_op_result(op));
}

/* The message of an invalid handle names its kind and the expected kind. */
static void messages_name_the_kind_of_handle(void)
{
    EXPECT(ZKL_E_HANDLE, zkl_release((zkl_lock *)(void *)client));
    EXPECT_MESSAGE(" is a client; expected a lock");
    EXPECT(ZKL_E_HANDLE, zkl_client_state((zkl_client *)(void *)config));
    EXPECT_MESSAGE(" is a config; expected a client");
    EXPECT(ZKL_E_HANDLE, zkl_acquire(NULL));
    EXPECT_MESSAGE("is NULL; expected a lock");
    zkl_lock *freed = new_mutex(client, "/a");
    zkl_lock_free(freed);
    EXPECT_MESSAGE_UNCHANGED(zkl_lock_free(freed));
    EXPECT(ZKL_E_HANDLE, zkl_acquire(freed));
    EXPECT_MESSAGE("was freed");
    EXPECT(ZKL_E_HANDLE, zkl_acquire((zkl_lock *)(uintptr_t)0xdeadbeef));
    EXPECT_MESSAGE("0xdeadbeef is not a handle of zklock");
}

/* A freed handle never becomes valid again, even if many handles are created later. */
static void freed_handles_stay_dead(void)
{
    zkl_lock *freed = new_mutex(client, "/a");
    zkl_lock_free(freed);
    for (int i = 0; i < 1000; i++) {
        zkl_lock *next = new_mutex(client, "/a");
        CHECK(next != freed);
        EXPECT_NOT_SAFE(zkl_is_held(freed), "was freed");
        zkl_lock_free(freed);
        CHECK(zkl_is_held(next) == 0);
        zkl_lock_free(next);
    }
}

/* Texts that are NULL or not UTF-8 are rejected, and the message names the position of the wrong byte. */
static void wrong_texts(void)
{
    static const struct {
        const char *text;
        const char *says;
    } broken[] = {
        {NULL, "NULL"},
        {"/a\xff", "0xff at position 2"},
        {"/\xc3(", "0xc3 at position 1"},
        {"/\xe6\x97", "0xe6 at position 1"},
        {"\x80", "0x80 at position 0"},
        {"/\xed\xa0\x80", "0xed at position 1"},
    };
    zkl_lock *lock_out = (zkl_lock *)&lock_out;
    zkl_client *client_out = (zkl_client *)&client_out;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        EXPECT(ZKL_E_INVALID, zkl_mutex_new(client, broken[i].text, &lock_out));
        EXPECT_MESSAGE("path");
        EXPECT_MESSAGE(broken[i].says);
        EXPECT(ZKL_E_INVALID, zkl_client_new(broken[i].text, NULL, &client_out));
        EXPECT_MESSAGE("servers");
        EXPECT_MESSAGE(broken[i].says);
        EXPECT(ZKL_E_INVALID, zkl_config_add_auth(config, broken[i].text, NULL, 0));
        EXPECT_MESSAGE(broken[i].says);
        EXPECT(ZKL_E_INVALID, zkl_config_set_auth_callback(config, broken[i].text, NULL, NULL, NULL));
        EXPECT_MESSAGE("scheme");
        EXPECT_MESSAGE(broken[i].says);

        const char *text = broken[i].text, *says = broken[i].says;
        zkl_lock *write_out = lock_out;
        zkl_semaphore *semaphore_out = (zkl_semaphore *)&lock_out;
        int32_t value = -7;
        EXPECT(ZKL_E_INVALID, zkl_semaphore_mutex_new(client, text, &lock_out));
        EXPECT_MESSAGE(says);
        EXPECT(ZKL_E_INVALID, zkl_rwlock_new(client, text, &lock_out, &write_out));
        EXPECT_MESSAGE(says);
        EXPECT(ZKL_E_INVALID, zkl_semaphore_new(client, text, 1, &semaphore_out));
        EXPECT_MESSAGE(says);
        EXPECT(ZKL_E_INVALID, zkl_semaphore_new_counted(client, text, "/a", 1, &semaphore_out));
        EXPECT_MESSAGE(says);
        EXPECT(ZKL_E_INVALID, zkl_semaphore_new_counted(client, "/a", text, 1, &semaphore_out));
        EXPECT_MESSAGE("count_path");
        EXPECT_MESSAGE(says);
        EXPECT(ZKL_E_INVALID, zkl_shared_count_get(client, text, &value));
        EXPECT_MESSAGE("count_path");
        EXPECT_MESSAGE(says);
        EXPECT(ZKL_E_INVALID, zkl_shared_count_set(client, text, 1));
        EXPECT_MESSAGE("count_path");
        EXPECT_MESSAGE(says);
        EXPECT(ZKL_E_INVALID, zkl_revoke(client, text));
        EXPECT_MESSAGE("node_path");
        EXPECT_MESSAGE(says);
        EXPECT(ZKL_E_INVALID, zkl_client_set_servers(client, text));
        EXPECT_MESSAGE("servers");
        EXPECT_MESSAGE(says);
        EXPECT(ZKL_E_INVALID, zkl_fence_check(client, text, 1, &value));
        EXPECT_MESSAGE(says);
        CHECK(write_out == lock_out && semaphore_out == (zkl_semaphore *)&lock_out && value == -7);
        zkl_op *started = (zkl_op *)&lock_out;
        EXPECT(ZKL_E_INVALID, zkl_client_start(text, NULL, &started));
        EXPECT_MESSAGE("servers");
        EXPECT_MESSAGE(says);
        EXPECT(ZKL_E_INVALID, zkl_semaphore_new_counted_start(client, text, "/a", 1, &started));
        EXPECT_MESSAGE(says);
        EXPECT(ZKL_E_INVALID, zkl_semaphore_new_counted_start(client, "/a", text, 1, &started));
        EXPECT_MESSAGE("count_path");
        EXPECT_MESSAGE(says);
        EXPECT(ZKL_E_INVALID, zkl_shared_count_get_start(client, text, &started));
        EXPECT_MESSAGE("count_path");
        EXPECT_MESSAGE(says);
        EXPECT(ZKL_E_INVALID, zkl_shared_count_set_start(client, text, 1, &started));
        EXPECT_MESSAGE("count_path");
        EXPECT_MESSAGE(says);
        EXPECT(ZKL_E_INVALID, zkl_revoke_start(client, text, &started));
        EXPECT_MESSAGE("node_path");
        EXPECT_MESSAGE(says);
        EXPECT(ZKL_E_INVALID, zkl_fence_check_start(client, text, 1, &started));
        EXPECT_MESSAGE(says);
        CHECK(started == (zkl_op *)&lock_out);
    }
    CHECK(lock_out == (zkl_lock *)&lock_out);
    CHECK(client_out == (zkl_client *)&client_out);
}

/* Checks that every function that takes a path rejects this one. */
static void refuse_path(const char *path, const char *says)
{
    zkl_lock *out = (zkl_lock *)&out, *write_out = (zkl_lock *)&out;
    zkl_semaphore *semaphore_out = (zkl_semaphore *)&out;
    int32_t value = -7;
    EXPECT(ZKL_E_INVALID, zkl_mutex_new(client, path, &out));
    EXPECT_MESSAGE(says);
    EXPECT(ZKL_E_INVALID, zkl_semaphore_mutex_new(client, path, &out));
    EXPECT_MESSAGE(says);
    EXPECT(ZKL_E_INVALID, zkl_rwlock_new(client, path, &out, &write_out));
    EXPECT_MESSAGE(says);
    EXPECT(ZKL_E_INVALID, zkl_semaphore_new(client, path, 1, &semaphore_out));
    EXPECT_MESSAGE(says);
    EXPECT(ZKL_E_INVALID, zkl_semaphore_new_counted(client, path, "/a", 1, &semaphore_out));
    EXPECT_MESSAGE(says);
    EXPECT(ZKL_E_INVALID, zkl_semaphore_new_counted(client, "/a", path, 1, &semaphore_out));
    EXPECT_MESSAGE(says);
    EXPECT(ZKL_E_INVALID, zkl_shared_count_get(client, path, &value));
    EXPECT_MESSAGE(says);
    EXPECT(ZKL_E_INVALID, zkl_shared_count_set(client, path, 1));
    EXPECT_MESSAGE(says);
    EXPECT(ZKL_E_INVALID, zkl_revoke(client, path));
    EXPECT_MESSAGE(says);
    EXPECT(ZKL_E_INVALID, zkl_fence_check(client, path, 1, &value));
    EXPECT_MESSAGE(says);
    zkl_op *started = (zkl_op *)&out;
    EXPECT(ZKL_E_INVALID, zkl_semaphore_new_counted_start(client, path, "/a", 1, &started));
    EXPECT_MESSAGE(says);
    EXPECT(ZKL_E_INVALID, zkl_semaphore_new_counted_start(client, "/a", path, 1, &started));
    EXPECT_MESSAGE(says);
    EXPECT(ZKL_E_INVALID, zkl_shared_count_get_start(client, path, &started));
    EXPECT_MESSAGE(says);
    EXPECT(ZKL_E_INVALID, zkl_shared_count_set_start(client, path, 1, &started));
    EXPECT_MESSAGE(says);
    EXPECT(ZKL_E_INVALID, zkl_revoke_start(client, path, &started));
    EXPECT_MESSAGE(says);
    EXPECT(ZKL_E_INVALID, zkl_fence_check_start(client, path, 1, &started));
    EXPECT_MESSAGE(says);
    CHECK(started == (zkl_op *)&out);
    CHECK(strlen(zkl_last_error_message()) < 400);
    CHECK(out == (zkl_lock *)&out && write_out == (zkl_lock *)&out && value == -7);
    CHECK(semaphore_out == (zkl_semaphore *)&out);
}

/* Every function that takes a path rejects invalid and very long paths. */
static void wrong_paths(void)
{
    static const char *const paths[] = {"", "/", "a", "a/b", "/a/", "//a", "/a//b", "/./a", "/a/..", "/a\tb", "/zookeeper/a"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) refuse_path(paths[i], "path \"");
    enum { LONG = 100 * 1024 };
    char *path = malloc(LONG + 1);
    memset(path, 'x', LONG);
    path[0] = '/';
    path[LONG] = '\0';
    refuse_path(path, "102400");
    free(path);
}

/* An invalid connect string fails with INVALID. */
static void wrong_servers(void)
{
    static const char *const wrong[] = {"", ",", "host:", "host:0", "host:65536", "host:2181,", "host:2181/a/", "a b:1", "::1"};
    zkl_client *out = (zkl_client *)&out;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        EXPECT(ZKL_E_INVALID, zkl_client_new(wrong[i], NULL, &out));
        zkl_op *started = (zkl_op *)&out;
        EXPECT(ZKL_E_INVALID, zkl_client_start(wrong[i], NULL, &started));
        CHECK(started == (zkl_op *)&out);
    }
    CHECK(out == (zkl_client *)&out);
}

/* Numbers outside the allowed range fail with INVALID, and the message contains the number. */
static void wrong_numbers(void)
{
    static const int32_t negative[] = {-1, -5000, INT32_MIN};
    for (size_t i = 0; i < sizeof negative / sizeof *negative; i++) {
        char value[32];
        snprintf(value, sizeof value, "%" PRId32, negative[i]);
        EXPECT(ZKL_E_INVALID, zkl_config_set_session_timeout_ms(config, negative[i]));
        EXPECT_MESSAGE(value);
        EXPECT(ZKL_E_INVALID, zkl_config_set_connect_timeout_ms(config, negative[i]));
        EXPECT_MESSAGE(value);
        EXPECT(ZKL_E_INVALID, zkl_config_set_lease_margin_ms(config, negative[i]));
        EXPECT_MESSAGE(value);
    }
    EXPECT(ZKL_E_INVALID, zkl_config_set_session_timeout_ms(config, 0));
    EXPECT(ZKL_E_INVALID, zkl_config_set_connect_timeout_ms(config, 0));
    OK(zkl_config_set_lease_margin_ms(config, 0));
    OK(zkl_config_set_lease_margin_ms(config, INT32_MAX));
    static const int32_t no_switch[] = {-1, 2, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof no_switch / sizeof *no_switch; i++) {
        char value[32];
        snprintf(value, sizeof value, "%" PRId32, no_switch[i]);
        EXPECT(ZKL_E_INVALID, zkl_config_set_wait_for_kazoo(config, no_switch[i]));
        EXPECT_MESSAGE(value);
    }
    OK(zkl_config_set_wait_for_kazoo(config, 1));
    OK(zkl_config_set_wait_for_kazoo(config, 0));
    zkl_semaphore *counted = (zkl_semaphore *)&counted;
    EXPECT(ZKL_E_INVALID, zkl_semaphore_new_counted(client, "/a", "/b", -1, &counted));
    EXPECT_MESSAGE("initial is -1; expected 0 or more");
    EXPECT(ZKL_E_INVALID, zkl_semaphore_new_counted(client, "/a", "/b", INT32_MIN, &counted));
    zkl_op *counted_op = (zkl_op *)&counted;
    EXPECT(ZKL_E_INVALID, zkl_semaphore_new_counted_start(client, "/a", "/b", -1, &counted_op));
    EXPECT_MESSAGE("initial is -1; expected 0 or more");
    EXPECT(ZKL_E_INVALID, zkl_fence_check_start(client, "/a", 0, &counted_op));
    EXPECT_MESSAGE("token is 0; expected 1 or more");
    CHECK(counted_op == (zkl_op *)&counted);
    CHECK(counted == (zkl_semaphore *)&counted);
    static const int64_t no_limit[] = {-2, INT64_MIN};
    zkl_hold *out = (zkl_hold *)&out;
    zkl_op *started = (zkl_op *)&out;
    for (size_t i = 0; i < 2; i++) {
        EXPECT(ZKL_E_INVALID, zkl_semaphore_acquire_timeout(semaphore, 1, no_limit[i], &out));
        EXPECT_MESSAGE("timeout_ms");
        EXPECT(ZKL_E_INVALID, zkl_acquire_start(lock, 1, no_limit[i], &started));
        EXPECT_MESSAGE("timeout_ms");
        EXPECT(ZKL_E_INVALID, zkl_semaphore_acquire_start(semaphore, 1, no_limit[i], &started));
        EXPECT_MESSAGE("timeout_ms");
        EXPECT(ZKL_E_INVALID, zkl_op_wait(op, no_limit[i]));
        EXPECT(ZKL_E_INVALID, zkl_wait_lost(lock, no_limit[i]));
        EXPECT(ZKL_E_INVALID, zkl_hold_wait_lost(leases, no_limit[i]));
        EXPECT_MESSAGE("timeout_ms");
    }
    static const int32_t no_quantity[] = {0, -1, INT32_MIN, 3, INT32_MAX};
    for (size_t i = 0; i < sizeof no_quantity / sizeof *no_quantity; i++) {
        char value[32];
        snprintf(value, sizeof value, "%" PRId32, no_quantity[i]);
        EXPECT(ZKL_E_INVALID, zkl_semaphore_acquire_start(semaphore, no_quantity[i], 0, &started));
        EXPECT_MESSAGE(value);
    }
    CHECK(out == (zkl_hold *)&out && started == (zkl_op *)&out);
}

/* An option can be set by its name; unknown names and invalid values fail with INVALID. */
static void options_by_name(void)
{
    zkl_config *own = zkl_config_new();
    zkl_client *out = NULL;
    OK(zkl_config_set(own, "session.timeout", "7000"));
    OK(zkl_config_set(own, "connect.timeout", "30"));
    OK(zkl_config_set(own, "lease.margin", "0"));
    int64_t began = now_ms();
    EXPECT(ZKL_E_CONNECTION, zkl_client_new("127.0.0.1:1", own, &out));
    CHECK(now_ms() - began < 5000 + slack_ms());
    EXPECT(ZKL_E_INVALID, zkl_config_set(own, "session.timeout", "7 s"));
    EXPECT_MESSAGE("option session.timeout is \"7 s\"; expected 1 to 2147483647 milliseconds");
    EXPECT(ZKL_E_INVALID, zkl_config_set(own, "session_timeout", "7000"));
    EXPECT_MESSAGE("option \"session_timeout\" is unknown; expected one of ");
    EXPECT(ZKL_E_INVALID, zkl_config_set(own, NULL, "7000"));
    EXPECT_MESSAGE("name is NULL");
    EXPECT(ZKL_E_INVALID, zkl_config_set(own, "session.timeout", NULL));
    EXPECT_MESSAGE("value is NULL");
    EXPECT(ZKL_E_INVALID, zkl_config_set(own, "session.timeout", "\xff"));
    EXPECT_MESSAGE("value is not UTF-8");
    zkl_config_free(own);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* Options can be loaded from a file; an error names the file and the line. */
static void options_in_a_file(void)
{
    char file[64];
    snprintf(file, sizeof file, "/tmp/zklock-options-%ld", (long)getpid());
    zkl_config *own = zkl_config_new();
    EXPECT(ZKL_E_INVALID, zkl_config_load(own, file));
    EXPECT_MESSAGE(file);
    EXPECT_MESSAGE("No such file");
    EXPECT(ZKL_E_INVALID, zkl_config_load(own, "/tmp"));
    EXPECT_MESSAGE("options file \"/tmp\": is a directory");
    EXPECT(ZKL_E_INVALID, zkl_config_load(own, NULL));
    EXPECT_MESSAGE("file is NULL");
    write_file(file, "# one\nlease.margin = 5\n\nlease.margin = 6\n");
    EXPECT(ZKL_E_INVALID, zkl_config_load(own, file));
    EXPECT_MESSAGE(file);
    EXPECT_MESSAGE("line 4: option lease.margin is set twice; line 2 sets it as well");
    write_file(file, "# one\nconnect.timeout = 30\n");
    OK(zkl_config_load(own, file));
    zkl_client *out = NULL;
    int64_t began = now_ms();
    EXPECT(ZKL_E_CONNECTION, zkl_client_new("127.0.0.1:1", own, &out));
    CHECK(now_ms() - began < 5000 + slack_ms());
    CHECK(remove(file) == 0);
    zkl_config_free(own);
}

/* Lengths that are too large fail with INVALID, and so do missing bytes. */
static void wrong_lengths(void)
{
    static const size_t absurd[] = {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 2 + 1, (size_t)1 << 40, 512 * 1024 + 1};
    const uint8_t byte = 0;
    for (size_t i = 0; i < sizeof absurd / sizeof *absurd; i++) {
        char value[32];
        snprintf(value, sizeof value, "%zu", absurd[i]);
        EXPECT(ZKL_E_INVALID, zkl_lock_set_data(lock, &byte, absurd[i]));
        EXPECT_MESSAGE(value);
        EXPECT(ZKL_E_INVALID, zkl_lock_set_data(lock, NULL, absurd[i]));
        EXPECT(ZKL_E_INVALID, zkl_semaphore_set_data(semaphore, &byte, absurd[i]));
        EXPECT_MESSAGE(value);
        EXPECT(ZKL_E_INVALID, zkl_config_add_auth(config, "digest", &byte, absurd[i]));
        EXPECT_MESSAGE(value);
    }
    EXPECT(ZKL_E_INVALID, zkl_lock_set_data(lock, NULL, 1));
    EXPECT_MESSAGE("data is NULL");
    EXPECT(ZKL_E_INVALID, zkl_config_add_auth(config, "digest", NULL, 1));
    EXPECT_MESSAGE("auth is NULL");
    EXPECT(ZKL_E_INVALID, zkl_config_add_auth(config, "", &byte, 1));
    OK(zkl_lock_set_data(lock, NULL, 0));
    OK(zkl_lock_set_data(lock, &byte, 0));
    OK(zkl_lock_set_data(lock, &byte, 1));
    EXPECT(ZKL_E_INVALID, zkl_semaphore_set_data(semaphore, NULL, 1));
    EXPECT_MESSAGE("data is NULL");
    OK(zkl_semaphore_set_data(semaphore, NULL, 0));
}

/* A missing output parameter fails with INVALID, and the message contains its name. */
static void outputs_that_are_null(void)
{
    EXPECT(ZKL_E_INVALID, zkl_client_new(servers, NULL, NULL));
    EXPECT_MESSAGE("client_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_mutex_new(client, "/a", NULL));
    EXPECT_MESSAGE("lock_out is NULL");
    OK(zkl_acquire(lock));
    EXPECT(ZKL_E_INVALID, zkl_fencing_token(lock, NULL));
    EXPECT_MESSAGE("token_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_fencing_pass(lock, NULL));
    EXPECT_MESSAGE("fencing_pass_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_remaining_ms(lock, NULL));
    EXPECT_MESSAGE("remaining_ms_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_participants(lock, NULL, NULL));
    EXPECT_MESSAGE("cb is NULL");
    EXPECT(ZKL_E_INVALID, zkl_queue(lock, NULL, NULL));
    EXPECT_MESSAGE("cb is NULL");
    EXPECT(ZKL_E_INVALID, zkl_waiting(lock, NULL, NULL));
    EXPECT_MESSAGE("cb is NULL");
    EXPECT(ZKL_E_INVALID, zkl_semaphore_waiting(semaphore, NULL, NULL));
    EXPECT_MESSAGE("cb is NULL");
    EXPECT(ZKL_E_INVALID, zkl_semaphore_participants(semaphore, NULL, NULL));
    EXPECT_MESSAGE("cb is NULL");
    EXPECT(ZKL_E_INVALID, zkl_semaphore_mutex_new(client, "/a", NULL));
    EXPECT_MESSAGE("lock_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_semaphore_new(client, "/a", 1, NULL));
    EXPECT_MESSAGE("semaphore_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_semaphore_new_counted(client, "/a", "/b", 1, NULL));
    EXPECT_MESSAGE("semaphore_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_semaphore_acquire_timeout(semaphore, 1, 0, NULL));
    EXPECT_MESSAGE("hold_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_acquire_start(lock, 1, 0, NULL));
    EXPECT_MESSAGE("op_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_semaphore_acquire_start(semaphore, 1, 0, NULL));
    EXPECT_MESSAGE("op_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_op_hold(op, NULL));
    EXPECT_MESSAGE("hold_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_client_start(servers, NULL, NULL));
    EXPECT_MESSAGE("op_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_client_close_start(client, NULL));
    EXPECT_MESSAGE("op_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_hold_wait_lost_start(leases, NULL));
    EXPECT_MESSAGE("op_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_hold_release_start(leases, NULL));
    EXPECT_MESSAGE("op_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_participants_start(lock, NULL));
    EXPECT_MESSAGE("op_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_queue_start(lock, NULL));
    EXPECT_MESSAGE("op_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_semaphore_participants_start(semaphore, NULL));
    EXPECT_MESSAGE("op_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_revoke_start(client, "/a", NULL));
    EXPECT_MESSAGE("op_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_fence_check_start(client, "/a", 1, NULL));
    EXPECT_MESSAGE("op_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_shared_count_get_start(client, "/a", NULL));
    EXPECT_MESSAGE("op_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_shared_count_set_start(client, "/a", 1, NULL));
    EXPECT_MESSAGE("op_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_semaphore_new_counted_start(client, "/a", "/b", 1, NULL));
    EXPECT_MESSAGE("op_out is NULL");
    /* None of these calls has changed anything. */
    CHECK(zkl_client_state(client) == ZKL_STATE_CONNECTED && zkl_is_held(lock) == 1 && zkl_hold_is_held(leases) == 1);
    EXPECT(ZKL_E_INVALID, zkl_op_value(op, NULL));
    EXPECT_MESSAGE("value_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_op_participant(op, 0, NULL));
    EXPECT_MESSAGE("participant_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_op_client(op, NULL));
    EXPECT_MESSAGE("client_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_op_semaphore(op, NULL));
    EXPECT_MESSAGE("semaphore_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_hold_view(leases, NULL));
    EXPECT_MESSAGE("info_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_hold_acquire(lock, ZKL_OWNER_NEW, 0, NULL));
    EXPECT_MESSAGE("hold_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_shared_count_get(client, "/a", NULL));
    EXPECT_MESSAGE("value_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_fence_check(client, "/a", 1, NULL));
    EXPECT_MESSAGE("valid_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_client_dispatch_events(client, NULL));
    EXPECT_MESSAGE("count_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_client_metrics(client, sizeof(zkl_metrics), NULL));
    EXPECT_MESSAGE("metrics_out is NULL");
    char buf[256];
    EXPECT(ZKL_E_INVALID, zkl_lock_node_path(lock, buf, sizeof buf, NULL));
    EXPECT_MESSAGE("needed_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_hold_node_path(leases, 0, buf, sizeof buf, NULL));
    EXPECT_MESSAGE("needed_out is NULL");
    OK(zkl_release(lock));
}

/* If a buffer is too small, the call fails with BUFFER and returns the required size. */
static void buffers_that_are_too_small(void)
{
    char buf[256], whole[256];
    size_t needed = 7, size = 0;
    EXPECT(ZKL_E_NOT_OWNER, zkl_lock_node_path(lock, buf, sizeof buf, &needed));
    CHECK(needed == 7);
    OK(zkl_acquire(lock));
    EXPECT(ZKL_E_INVALID, zkl_lock_node_path(lock, NULL, 1, &needed));
    EXPECT_MESSAGE("buf is NULL");
    EXPECT(ZKL_E_INVALID, zkl_lock_node_path(lock, NULL, SIZE_MAX, &needed));
    CHECK(needed == 7);
    EXPECT(ZKL_E_BUFFER, zkl_lock_node_path(lock, NULL, 0, &size));
    CHECK(size > 1 && size < sizeof buf);
    /* The library trusts the size of the buffer that the program passes. */
    OK(zkl_lock_node_path(lock, whole, SIZE_MAX, &needed));
    CHECK(needed == size && strlen(whole) + 1 == size);
    memset(buf, 'x', sizeof buf);
    for (size_t small = 0; small < size; small++) {
        needed = 7;
        EXPECT(ZKL_E_BUFFER, zkl_lock_node_path(lock, buf, small, &needed));
        CHECK(needed == size && buf[0] == 'x');
    }
    char value[32];
    snprintf(value, sizeof value, "%zu", size);
    EXPECT_MESSAGE(value);
    /* The buffer and the size need no alignment. */
    char bytes[sizeof(size_t) + 1];
    OK(zkl_lock_node_path(lock, buf + 1, size, (size_t *)(void *)(bytes + 1)));
    CHECK(strcmp(buf + 1, whole) == 0 && buf[0] == 'x' && buf[size + 1] == 'x');
    CHECK(memcmp(bytes + 1, &size, sizeof size) == 0);
    OK(zkl_release(lock));
}

/* A lock that is replaced while other threads use it. */
static zkl_lock *_Atomic moving;
static atomic_bool moving_on;

static int is_expected(zkl_status status)
{
    switch (status) {
    case ZKL_OK:
    case ZKL_E_HANDLE:
    case ZKL_E_CLOSED:
    case ZKL_E_TIMEOUT:
    case ZKL_E_CONNECTION: /* The time limit is short, and the machine may be slow. */
    case ZKL_E_CANCELED:
    case ZKL_E_NOT_OWNER:
        return 1;
    default:
        return 0;
    }
}

static void *use_moving(void *unused)
{
    (void)unused;
    while (moving_on) {
        int64_t token;
        int count = 0;
        zkl_lock *here = moving;
        zkl_status status = zkl_acquire_timeout(here, 20);
        CHECK(is_expected(status));
        int32_t held = zkl_is_held(here);
        CHECK(held == 0 || held == 1);
        CHECK(is_expected(zkl_fencing_token(here, &token)));
        CHECK(is_expected(zkl_participants(here, count_participant, &count)));
        CHECK(is_expected(zkl_cancel(here)));
        CHECK(is_expected(zkl_lock_set_data(here, "x", 1)));
        zkl_lock *multi = NULL;
        if (zkl_multi_new(&here, 1, &multi) == ZKL_OK) {
            zkl_status of_multi = zkl_acquire_timeout(multi, 20);
            CHECK(is_expected(of_multi));
            if (of_multi == ZKL_OK) CHECK(is_expected(zkl_release(multi)));
            zkl_lock_free(multi);
        }
        if (status == ZKL_OK) CHECK(is_expected(zkl_release(here)));
    }
    return NULL;
}

/* A semaphore and leases that are replaced while other threads use them. */
static zkl_semaphore *_Atomic moving_semaphore;
static zkl_hold *_Atomic moving_leases;

static void *use_moving_semaphore(void *unused)
{
    (void)unused;
    while (moving_on) {
        int64_t number;
        int count = 0;
        char buf[256];
        size_t needed;
        zkl_hold *one = NULL;
        zkl_semaphore *here = moving_semaphore;
        CHECK(is_expected(zkl_semaphore_acquire_timeout(here, 1, 20, &one)));
        CHECK(is_expected(zkl_semaphore_participants(here, count_participant, &count)));
        CHECK(is_expected(zkl_semaphore_cancel(here)));
        zkl_hold *there = moving_leases;
        int32_t held = zkl_hold_is_held(there);
        CHECK(held == 0 || held == 1);
        CHECK(is_expected(hold_token(there, &number)));
        CHECK(is_expected(hold_remaining(there, &number)));
        CHECK(is_expected(zkl_hold_node_path(there, 0, buf, sizeof buf, &needed)));
        if (one != NULL) {
            there = moving_leases;
            moving_leases = one;
            CHECK(is_expected(zkl_hold_release(there)));
        }
    }
    return NULL;
}

/* Semaphores, leases and clients can be freed while other threads use them. */
static void semaphores_are_freed_while_they_are_used(void)
{
    pthread_t threads[3];
    char path[64];
    zkl_client *own = new_client();
    strcpy(path, fresh_path());
    moving_semaphore = new_semaphore(own, path, 2);
    moving_on = true;
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, use_moving_semaphore, NULL) == 0);
    for (int i = 0; i < 40; i++) {
        zkl_semaphore *before = moving_semaphore;
        zkl_client *client_before = own;
        sleep_ms(5);
        if (i % 10 == 0) own = new_client();
        moving_semaphore = new_semaphore(own, path, 2);
        if (i % 10 == 0) zkl_client_free(client_before);
        zkl_semaphore_free(before);
    }
    moving_on = false;
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    zkl_semaphore_free(moving_semaphore);
    zkl_client_free(own);
}

/* Locks and clients can be freed while other threads use them. */
static void handles_are_freed_while_they_are_used(void)
{
    pthread_t threads[3];
    char path[64];
    zkl_client *own = new_client();
    strcpy(path, fresh_path());
    moving = new_mutex(own, path);
    moving_on = true;
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, use_moving, NULL) == 0);
    for (int i = 0; i < 60; i++) {
        zkl_lock *before = moving;
        zkl_client *client_before = own;
        sleep_ms(5);
        if (i % 10 == 0) own = new_client();
        moving = new_mutex(own, path);
        if (i % 10 == 0) zkl_client_free(client_before);
        zkl_lock_free(before);
    }
    moving_on = false;
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(participants(moving) == 0);
    zkl_lock_free(moving);
    zkl_client_free(own);
}

/* An operation that is replaced while other threads use it. Some of these threads free it. */
static zkl_op *_Atomic moving_op;

static int is_expected_of_op(zkl_status status)
{
    return is_expected(status) || status == ZKL_E_PENDING;
}

static void *use_moving_op(void *unused)
{
    (void)unused;
    for (unsigned round = 0; moving_on; round++) {
        zkl_op *here = moving_op;
        int fd = zkl_op_fd(here);
        CHECK(fd >= 0 || fd == ZKL_E_HANDLE);
        CHECK(is_expected_of_op(zkl_op_result(here)));
        CHECK(is_expected_of_op(zkl_op_wait(here, round % 3)));
        if (round % 5 == 0) CHECK(is_expected(zkl_op_cancel(here)));
        if (round % 7 == 0) zkl_op_free(here);
        if (here == moving_op && round % 2 == 0) continue;
        CHECK(is_expected_of_op(zkl_op_wait(here, 1)));
    }
    return NULL;
}

/* Operations can be freed while other threads use them. */
static void operations_are_freed_while_they_are_used(void)
{
    pthread_t threads[3];
    zkl_client *own = new_client();
    zkl_lock *mine = new_mutex(own, fresh_path());
    zkl_op *next = NULL;
    OK(zkl_acquire_start(mine, 1, -1, &next));
    moving_op = next;
    moving_on = true;
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, use_moving_op, NULL) == 0);
    for (int i = 0; i < 200; i++) {
        zkl_op *before = moving_op;
        OK(zkl_acquire_start(mine, (uint64_t)i % 3 + 1, i % 4 == 0 ? 5 : -1, &next));
        moving_op = next;
        sleep_ms(1);
        zkl_op_free(before);
    }
    moving_on = false;
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    zkl_op_free(moving_op);
    await_participants(mine, 0);
    zkl_lock_free(mine);
    zkl_client_free(own);
}

/* A call while the thread ends, when a part of its thread-local data is gone. */
static void late_call(void *unused)
{
    (void)unused;
    EXPECT(ZKL_E_HANDLE, zkl_release(NULL));
    EXPECT(ZKL_E_NOT_OWNER, zkl_release(lock));
    CHECK(zkl_is_held(lock) == 0);
    CHECK(zkl_is_held_in_process(lock) == 1);
}

static void *short_lived(void *key)
{
    CHECK(pthread_setspecific(*(pthread_key_t *)key, key) == 0);
    return NULL;
}

/* Calls from the destructor of thread-specific data work. */
static void calls_from_a_thread_at_its_end(void)
{
    pthread_key_t key;
    pthread_t thread;
    CHECK(pthread_key_create(&key, late_call) == 0);
    OK(zkl_acquire(lock));
    CHECK(pthread_create(&thread, NULL, short_lived, &key) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    OK(zkl_release(lock));
    CHECK(pthread_key_delete(key) == 0);
}

/* The objects of a thread that ends. */
struct belongings {
    pthread_key_t key;
    int rounds, drops;
    zkl_client *client;
    zkl_lock *lock;
    zkl_listener *listener;
};

static void count_drop(void *value)
{
    struct belongings *own = value;
    own->drops++;
}

/* The library's own thread-local data is gone in the last round of destructors. */
static void free_in_last_round(void *value)
{
    struct belongings *own = value;
    if (++own->rounds < PTHREAD_DESTRUCTOR_ITERATIONS) {
        CHECK(pthread_setspecific(own->key, own) == 0);
        return;
    }
    OK(zkl_release(own->lock));
    zkl_listener_free(own->listener);
    CHECK(own->drops == 2);
    zkl_lock_free(own->lock);
    zkl_client_free(own->client);
    CHECK(zkl_client_state(own->client) == ZKL_E_HANDLE && zkl_lock_state(own->lock) == ZKL_E_HANDLE);
}

static void *make_belongings(void *value)
{
    struct belongings *own = value;
    own->client = new_client();
    own->lock = new_mutex(own->client, fresh_path());
    OK(zkl_lock_listen(own->lock, 0, on_event, own, count_drop, &own->listener));
    zkl_listener_free(own->listener);
    OK(zkl_lock_listen(own->lock, 0, on_event, own, count_drop, &own->listener));
    OK(zkl_acquire(own->lock));
    CHECK(pthread_setspecific(own->key, own) == 0);
    return NULL;
}

static void objects_are_freed_at_the_end_of_a_thread(void)
{
    struct belongings own = {.rounds = 0};
    pthread_t thread;
    CHECK(pthread_key_create(&own.key, free_in_last_round) == 0);
    CHECK(pthread_create(&thread, NULL, make_belongings, &own) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(own.rounds == PTHREAD_DESTRUCTOR_ITERATIONS);
    CHECK(pthread_key_delete(own.key) == 0);
}

static void *fail_here(void *unused)
{
    (void)unused;
    CHECK(*zkl_last_error_message() == '\0');
    EXPECT(ZKL_E_HANDLE, zkl_client_state(NULL));
    return NULL;
}

/* A failure on another thread does not change the last error message. */
static void last_error_message_is_per_thread(void)
{
    pthread_t thread;
    EXPECT(ZKL_E_INVALID, zkl_acquire_timeout(lock, -2));
    CHECK(pthread_create(&thread, NULL, fail_here, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    EXPECT_MESSAGE("timeout_ms is -2");
    CHECK(strcmp(zkl_strerror(ZKL_E_CLOSED), "") != 0 && zkl_status_errno(ZKL_E_CLOSED) != 0 && zkl_version() != NULL);
    EXPECT_MESSAGE("timeout_ms is -2");
}

/* A program that cleans up before it reports a failure can still read the message of that failure. */
static void the_last_message_stays_until_the_next_failure(void)
{
    zkl_config *own = zkl_config_new();
    EXPECT(ZKL_E_INVALID, zkl_config_set_session_timeout_ms(own, 0));
    char said[128];
    snprintf(said, sizeof said, "%s", zkl_last_error_message());
    CHECK(strstr(said, "session timeout 0 ms") != NULL);
    OK(zkl_config_set_session_timeout_ms(own, 1000));
    zkl_lock *mutex = new_mutex(client, fresh_path());
    OK(zkl_acquire(mutex));
    CHECK(zkl_is_held(mutex) == 1 && zkl_client_session_id(client) != 0);
    OK(zkl_release(mutex));
    zkl_lock_free(mutex);
    zkl_lock_free(mutex);
    zkl_client_free(new_client());
    zkl_config_free(own);
    zkl_config_free(own);
    zkl_op_free(NULL);
    CHECK(strcmp(zkl_last_error_message(), said) == 0);
    CHECK(zkl_client_session_id(NULL) == 0);
    EXPECT_MESSAGE("handle is NULL; expected a client");
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    /* The very first call of the program is an invalid one. */
    EXPECT(ZKL_E_HANDLE, zkl_acquire((zkl_lock *)&servers));
    config = zkl_config_new();
    CHECK(config != NULL);
    client = new_client();
    lock = new_mutex(client, fresh_path());
    semaphore = new_semaphore(client, fresh_path(), 2);
    OK(zkl_semaphore_acquire_timeout(semaphore, 1, 60000, &leases));
    owned = new_mutex(client, fresh_path());
    OK(zkl_acquire_start(owned, 7, 60000, &op));
    OK(zkl_op_wait(op, -1));
    OK(zkl_client_listen(client, on_event, NULL, NULL, &listener));
    RUN(wrong_configs);
    RUN(wrong_clients);
    RUN(wrong_locks);
    RUN(wrong_semaphores);
    RUN(wrong_leases);
    RUN(wrong_ops);
    RUN(wrong_listeners);
    RUN(messages_name_the_kind_of_handle);
    RUN(freed_handles_stay_dead);
    RUN(wrong_texts);
    RUN(wrong_paths);
    RUN(wrong_servers);
    RUN(wrong_numbers);
    RUN(options_by_name);
    RUN(options_in_a_file);
    RUN(wrong_lengths);
    RUN(outputs_that_are_null);
    RUN(buffers_that_are_too_small);
    RUN(handles_are_freed_while_they_are_used);
    RUN(semaphores_are_freed_while_they_are_used);
    RUN(operations_are_freed_while_they_are_used);
    RUN(calls_from_a_thread_at_its_end);
    RUN(objects_are_freed_at_the_end_of_a_thread);
    RUN(last_error_message_is_per_thread);
    RUN(the_last_message_stays_until_the_next_failure);

    /* After all misuse, everything still works. */
    OK(zkl_acquire(lock));
    OK(zkl_release(lock));
    CHECK(zkl_client_state(client) == ZKL_STATE_CONNECTED);
    OK(zkl_hold_release(leases));
    zkl_listener_free(listener);
    OK(zkl_op_result(op));
    OK(zkl_hold_release(take_hold(op)));
    zkl_lock_free(owned);
    zkl_semaphore_free(semaphore);
    zkl_client_free(client);
    zkl_lock_free(lock);
    zkl_config_free(config);
    return 0;
}
