/* Whatever a program does wrong has a status and a message, changes nothing, and never crashes. */
#include "check.h"

#include <stdatomic.h>
#include <stdbool.h>

enum { BAD = 14 };

static zkl_config *config;
static zkl_client *client;
static zkl_lock *lock;
static zkl_semaphore *semaphore;
static zkl_leases *leases;
static zkl_lock *owned;
static zkl_op *op;

/* Values that are no live handle of a kind. */
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

/* A handle of a slot that was never used, and of a generation that has not come yet. */
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
    zkl_leases *released = NULL;
    OK(zkl_semaphore_acquire_timeout(semaphore, 1, 20000, &released));
    OK(zkl_leases_release(released));
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

static void hear(void *user, zkl_lock *unused)
{
    (void)user;
    (void)unused;
}

static void hear_semaphore(void *user, zkl_semaphore *unused)
{
    (void)user;
    (void)unused;
}

static void take_nothing(void *user)
{
    (void)user;
    CHECK(0);
}

/* The message says what the handle is and what was expected. */
static void says_handle(const void *handle, const char *expected)
{
    char value[32];
    snprintf(value, sizeof value, handle == NULL ? "NULL" : "%#" PRIxPTR, (uintptr_t)handle);
    SAYS(value);
    SAYS(expected);
}

#define REFUSES(call)                                                                                                          \
    do {                                                                                                                       \
        EXPECT(ZKL_E_HANDLE, call);                                                                                            \
        says_handle(bad, expected);                                                                                            \
    } while (0)

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
        REFUSES(zkl_config_add_auth(bad, "digest", (const uint8_t *)"a:b", 3));
        REFUSES(zkl_config_set_wait_for_kazoo(bad, 1));
        REFUSES(zkl_config_set_poll_events(bad, 1));
        REFUSES(zkl_config_set(bad, "lease.margin", "1000"));
        REFUSES(zkl_config_load(bad, "/dev/null"));
        zkl_config_free(bad);
        if (bad == NULL) {
            continue; /* NULL stands for the defaults. */
        }
        says_handle(bad, expected);
        REFUSES(zkl_client_new(servers, bad, &out));
        CHECK(out == (zkl_client *)&all);
    }
}

static void wrong_clients(void)
{
    struct bad all = bad_clients();
    const char *expected = "a client";
    for (int i = 0; i < all.count; i++) {
        zkl_client *bad = all.handles[i];
        zkl_lock *out = (zkl_lock *)&all;
        REFUSES(zkl_client_dispatch_events(bad));
        REFUSES(zkl_client_event_fd(bad));
        REFUSES(zkl_client_state(bad));
        CHECK(zkl_client_session_id(bad) == 0);
        says_handle(bad, expected);
        REFUSES(zkl_mutex_new(bad, "/a", &out));
        zkl_lock *write_out = (zkl_lock *)&all;
        zkl_semaphore *semaphore_out = (zkl_semaphore *)&all;
        int32_t value = -7;
        REFUSES(zkl_semaphore_mutex_new(bad, "/a", &out));
        REFUSES(zkl_rwlock_new(bad, "/a", &out, &write_out));
        REFUSES(zkl_semaphore_new(bad, "/a", 1, &semaphore_out));
        REFUSES(zkl_semaphore_new_counted(bad, "/a", "/b", 1, &semaphore_out));
        REFUSES(zkl_shared_count_get(bad, "/a", &value));
        REFUSES(zkl_shared_count_set(bad, "/a", 1));
        REFUSES(zkl_revoke(bad, "/a"));
        REFUSES(zkl_fence_check(bad, "/a", 1));
        CHECK(out == (zkl_lock *)&all && write_out == (zkl_lock *)&all && value == -7);
        CHECK(semaphore_out == (zkl_semaphore *)&all);
        KEEPS_THE_MESSAGE(zkl_client_free(bad));
    }
}

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
        REFUSES(zkl_is_held(bad));
        REFUSES(zkl_is_held_in_process(bad));
        REFUSES(zkl_lock_state(bad));
        REFUSES(zkl_fencing_token(bad, &out));
        REFUSES(zkl_fencing_pass(bad, &out));
        REFUSES(zkl_mutex_set_local_handover(bad, 1));
        REFUSES(zkl_remaining_ms(bad, &out));
        REFUSES(zkl_lock_set_data(bad, (const uint8_t *)"x", 1));
        REFUSES(zkl_participants(bad, count_participant, &out));
        REFUSES(zkl_queue(bad, count_participant, &out));
        REFUSES(zkl_waiting(bad, count_wait, &out));
        zkl_lock *locks[] = {lock, bad}, *multi = (zkl_lock *)&all;
        REFUSES(zkl_multi_new(locks, 2, &multi));
        SAYS("locks[1]: ");
        CHECK(multi == (zkl_lock *)&all);
        char buf[8] = "-";
        size_t needed = 7;
        REFUSES(zkl_lock_node_path(bad, buf, sizeof buf, &needed));
        CHECK(buf[0] == '-' && needed == 7);
        REFUSES(zkl_set_revocable(bad, hear, &out, take_nothing));
        REFUSES(zkl_set_revocable(bad, NULL, &out, take_nothing));
        zkl_op *started = (zkl_op *)&all;
        REFUSES(zkl_acquire_start(bad, 1, 0, &started));
        REFUSES(zkl_acquire_as(bad, 1, 0));
        REFUSES(zkl_release_as(bad, 1));
        REFUSES(zkl_release_nowait_as(bad, 1));
        REFUSES(zkl_is_held_as(bad, 1));
        REFUSES(zkl_lock_state_as(bad, 0));
        REFUSES(zkl_fencing_token_as(bad, 1, &out));
        REFUSES(zkl_fencing_pass_as(bad, 1, &out));
        REFUSES(zkl_remaining_ms_as(bad, 1, &out));
        REFUSES(zkl_lock_node_path_as(bad, 1, buf, sizeof buf, &needed));
        CHECK(started == (zkl_op *)&all && buf[0] == '-' && needed == 7);
        CHECK(out == -7);
        KEEPS_THE_MESSAGE(zkl_lock_free(bad));
    }
}

static void wrong_semaphores(void)
{
    struct bad all = bad_semaphores();
    const char *expected = "a semaphore";
    for (int i = 0; i < all.count; i++) {
        zkl_semaphore *bad = all.handles[i];
        zkl_leases *out = (zkl_leases *)&all;
        int count = 0;
        REFUSES(zkl_semaphore_acquire_timeout(bad, 1, 0, &out));
        REFUSES(zkl_semaphore_acquire_timeout(bad, 1, -1, &out));
        zkl_op *started = (zkl_op *)&all;
        REFUSES(zkl_semaphore_acquire_start(bad, 1, 0, &started));
        CHECK(started == (zkl_op *)&all);
        REFUSES(zkl_semaphore_cancel(bad));
        REFUSES(zkl_semaphore_set_data(bad, (const uint8_t *)"x", 1));
        REFUSES(zkl_semaphore_participants(bad, count_participant, &count));
        REFUSES(zkl_semaphore_waiting(bad, count_wait, &count));
        REFUSES(zkl_semaphore_set_revocable(bad, hear_semaphore, &count, take_nothing));
        REFUSES(zkl_semaphore_set_revocable(bad, NULL, &count, take_nothing));
        CHECK(out == (zkl_leases *)&all && count == 0);
        KEEPS_THE_MESSAGE(zkl_semaphore_free(bad));
    }
}

static void wrong_leases(void)
{
    struct bad all = bad_leases();
    const char *expected = "a set of leases";
    for (int i = 0; i < all.count; i++) {
        zkl_leases *bad = all.handles[i];
        int64_t out = -7;
        char buf[8] = "-";
        size_t needed = 7;
        REFUSES(zkl_leases_is_held(bad));
        REFUSES(zkl_leases_state(bad));
        REFUSES(zkl_leases_fencing_token(bad, &out));
        REFUSES(zkl_leases_remaining_ms(bad, &out));
        REFUSES(zkl_leases_node_path(bad, 0, buf, sizeof buf, &needed));
        REFUSES(zkl_leases_release(bad));
        CHECK(out == -7 && buf[0] == '-' && needed == 7);
    }
    CHECK(zkl_leases_is_held(leases) == 1);
}

static void wrong_ops(void)
{
    struct bad all = bad_ops();
    const char *expected = "an operation";
    for (int i = 0; i < all.count; i++) {
        zkl_op *bad = all.handles[i];
        zkl_leases *out = (zkl_leases *)&all;
        REFUSES(zkl_op_fd(bad));
        REFUSES(zkl_op_result(bad));
        REFUSES(zkl_op_wait(bad, 0));
        REFUSES(zkl_op_wait(bad, -1));
        REFUSES(zkl_op_cancel(bad));
        REFUSES(zkl_op_leases(bad, &out));
        CHECK(out == (zkl_leases *)&all);
        KEEPS_THE_MESSAGE(zkl_op_free(bad));
    }
    CHECK(zkl_is_held_as(owned, 7) == 1);
}

static void messages_tell_what_a_handle_is(void)
{
    EXPECT(ZKL_E_HANDLE, zkl_release((zkl_lock *)(void *)client));
    SAYS("a client was given where a lock was expected");
    EXPECT(ZKL_E_HANDLE, zkl_client_state((zkl_client *)(void *)config));
    SAYS("a config was given where a client was expected");
    EXPECT(ZKL_E_HANDLE, zkl_acquire(NULL));
    SAYS("is NULL; expected a lock");
    zkl_lock *freed = new_mutex(client, "/a");
    zkl_lock_free(freed);
    KEEPS_THE_MESSAGE(zkl_lock_free(freed));
    EXPECT(ZKL_E_HANDLE, zkl_acquire(freed));
    SAYS("was freed");
    EXPECT(ZKL_E_HANDLE, zkl_acquire((zkl_lock *)(uintptr_t)0xdeadbeef));
    SAYS("0xdeadbeef: is not a handle of zklock");
}

static void freed_handles_stay_dead(void)
{
    zkl_lock *freed = new_mutex(client, "/a");
    zkl_lock_free(freed);
    for (int i = 0; i < 1000; i++) {
        zkl_lock *next = new_mutex(client, "/a");
        CHECK(next != freed);
        EXPECT(ZKL_E_HANDLE, zkl_is_held(freed));
        zkl_lock_free(freed);
        CHECK(zkl_is_held(next) == 0);
        zkl_lock_free(next);
    }
}

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
        SAYS("path");
        SAYS(broken[i].says);
        EXPECT(ZKL_E_INVALID, zkl_client_new(broken[i].text, NULL, &client_out));
        SAYS("servers");
        SAYS(broken[i].says);
        EXPECT(ZKL_E_INVALID, zkl_config_add_auth(config, broken[i].text, NULL, 0));
        SAYS("scheme");
        SAYS(broken[i].says);

        const char *text = broken[i].text, *says = broken[i].says;
        zkl_lock *write_out = lock_out;
        zkl_semaphore *semaphore_out = (zkl_semaphore *)&lock_out;
        int32_t value = -7;
        EXPECT(ZKL_E_INVALID, zkl_semaphore_mutex_new(client, text, &lock_out));
        SAYS(says);
        EXPECT(ZKL_E_INVALID, zkl_rwlock_new(client, text, &lock_out, &write_out));
        SAYS(says);
        EXPECT(ZKL_E_INVALID, zkl_semaphore_new(client, text, 1, &semaphore_out));
        SAYS(says);
        EXPECT(ZKL_E_INVALID, zkl_semaphore_new_counted(client, text, "/a", 1, &semaphore_out));
        SAYS(says);
        EXPECT(ZKL_E_INVALID, zkl_semaphore_new_counted(client, "/a", text, 1, &semaphore_out));
        SAYS("count_path");
        SAYS(says);
        EXPECT(ZKL_E_INVALID, zkl_shared_count_get(client, text, &value));
        SAYS("count_path");
        SAYS(says);
        EXPECT(ZKL_E_INVALID, zkl_shared_count_set(client, text, 1));
        SAYS("count_path");
        SAYS(says);
        EXPECT(ZKL_E_INVALID, zkl_revoke(client, text));
        SAYS("node_path");
        SAYS(says);
        EXPECT(ZKL_E_INVALID, zkl_fence_check(client, text, 1));
        SAYS(says);
        CHECK(write_out == lock_out && semaphore_out == (zkl_semaphore *)&lock_out && value == -7);
    }
    CHECK(lock_out == (zkl_lock *)&lock_out);
    CHECK(client_out == (zkl_client *)&client_out);
}

/* Every function that takes a path refuses it. */
static void refuse_path(const char *path, const char *says)
{
    zkl_lock *out = (zkl_lock *)&out, *write_out = (zkl_lock *)&out;
    zkl_semaphore *semaphore_out = (zkl_semaphore *)&out;
    int32_t value = -7;
    EXPECT(ZKL_E_INVALID, zkl_mutex_new(client, path, &out));
    SAYS(says);
    EXPECT(ZKL_E_INVALID, zkl_semaphore_mutex_new(client, path, &out));
    SAYS(says);
    EXPECT(ZKL_E_INVALID, zkl_rwlock_new(client, path, &out, &write_out));
    SAYS(says);
    EXPECT(ZKL_E_INVALID, zkl_semaphore_new(client, path, 1, &semaphore_out));
    SAYS(says);
    EXPECT(ZKL_E_INVALID, zkl_semaphore_new_counted(client, path, "/a", 1, &semaphore_out));
    SAYS(says);
    EXPECT(ZKL_E_INVALID, zkl_semaphore_new_counted(client, "/a", path, 1, &semaphore_out));
    SAYS(says);
    EXPECT(ZKL_E_INVALID, zkl_shared_count_get(client, path, &value));
    SAYS(says);
    EXPECT(ZKL_E_INVALID, zkl_shared_count_set(client, path, 1));
    SAYS(says);
    EXPECT(ZKL_E_INVALID, zkl_revoke(client, path));
    SAYS(says);
    EXPECT(ZKL_E_INVALID, zkl_fence_check(client, path, 1));
    SAYS(says);
    CHECK(strlen(zkl_last_error_message()) < 400);
    CHECK(out == (zkl_lock *)&out && write_out == (zkl_lock *)&out && value == -7);
    CHECK(semaphore_out == (zkl_semaphore *)&out);
}

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

static void wrong_servers(void)
{
    static const char *const wrong[] = {"", ",", "host:", "host:0", "host:65536", "host:2181,", "host:2181/a/", "a b:1", "::1"};
    zkl_client *out = (zkl_client *)&out;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        EXPECT(ZKL_E_INVALID, zkl_client_new(wrong[i], NULL, &out));
    }
    CHECK(out == (zkl_client *)&out);
}

static void wrong_numbers(void)
{
    static const int32_t negative[] = {-1, -5000, INT32_MIN};
    for (size_t i = 0; i < sizeof negative / sizeof *negative; i++) {
        char value[32];
        snprintf(value, sizeof value, "%" PRId32, negative[i]);
        EXPECT(ZKL_E_INVALID, zkl_config_set_session_timeout_ms(config, negative[i]));
        SAYS(value);
        EXPECT(ZKL_E_INVALID, zkl_config_set_connect_timeout_ms(config, negative[i]));
        SAYS(value);
        EXPECT(ZKL_E_INVALID, zkl_config_set_lease_margin_ms(config, negative[i]));
        SAYS(value);
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
        SAYS(value);
    }
    OK(zkl_config_set_wait_for_kazoo(config, 1));
    OK(zkl_config_set_wait_for_kazoo(config, 0));
    zkl_semaphore *counted = (zkl_semaphore *)&counted;
    EXPECT(ZKL_E_INVALID, zkl_semaphore_new_counted(client, "/a", "/b", -1, &counted));
    SAYS("initial count of -1 leases; expected 0 or more");
    EXPECT(ZKL_E_INVALID, zkl_semaphore_new_counted(client, "/a", "/b", INT32_MIN, &counted));
    CHECK(counted == (zkl_semaphore *)&counted);
    static const int64_t no_limit[] = {-2, INT64_MIN};
    zkl_leases *out = (zkl_leases *)&out;
    zkl_op *started = (zkl_op *)&out;
    for (size_t i = 0; i < 2; i++) {
        EXPECT(ZKL_E_INVALID, zkl_semaphore_acquire_timeout(semaphore, 1, no_limit[i], &out));
        SAYS("timeout_ms");
        EXPECT(ZKL_E_INVALID, zkl_acquire_as(lock, 1, no_limit[i]));
        SAYS("timeout_ms");
        EXPECT(ZKL_E_INVALID, zkl_acquire_start(lock, 1, no_limit[i], &started));
        SAYS("timeout_ms");
        EXPECT(ZKL_E_INVALID, zkl_semaphore_acquire_start(semaphore, 1, no_limit[i], &started));
        SAYS("timeout_ms");
        EXPECT(ZKL_E_INVALID, zkl_op_wait(op, no_limit[i]));
        SAYS("timeout_ms");
    }
    static const int32_t no_quantity[] = {0, -1, INT32_MIN, 3, INT32_MAX};
    for (size_t i = 0; i < sizeof no_quantity / sizeof *no_quantity; i++) {
        char value[32];
        snprintf(value, sizeof value, "%" PRId32, no_quantity[i]);
        EXPECT(ZKL_E_INVALID, zkl_semaphore_acquire_start(semaphore, no_quantity[i], 0, &started));
        SAYS(value);
    }
    CHECK(out == (zkl_leases *)&out && started == (zkl_op *)&out);
}

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
    SAYS("option session.timeout is \"7 s\"; expected 1 to 2147483647 milliseconds");
    EXPECT(ZKL_E_INVALID, zkl_config_set(own, "session_timeout", "7000"));
    SAYS("option \"session_timeout\" is unknown; expected one of ");
    EXPECT(ZKL_E_INVALID, zkl_config_set(own, NULL, "7000"));
    SAYS("name is NULL");
    EXPECT(ZKL_E_INVALID, zkl_config_set(own, "session.timeout", NULL));
    SAYS("value is NULL");
    EXPECT(ZKL_E_INVALID, zkl_config_set(own, "session.timeout", "\xff"));
    SAYS("value is not UTF-8");
    zkl_config_free(own);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void options_in_a_file(void)
{
    char file[64];
    snprintf(file, sizeof file, "/tmp/zklock-options-%ld", (long)getpid());
    zkl_config *own = zkl_config_new();
    EXPECT(ZKL_E_INVALID, zkl_config_load(own, file));
    SAYS(file);
    SAYS("No such file");
    EXPECT(ZKL_E_INVALID, zkl_config_load(own, "/tmp"));
    SAYS("options file \"/tmp\": is a directory");
    EXPECT(ZKL_E_INVALID, zkl_config_load(own, NULL));
    SAYS("file is NULL");
    write_file(file, "# one\nlease.margin = 5\n\nlease.margin = 6\n");
    EXPECT(ZKL_E_INVALID, zkl_config_load(own, file));
    SAYS(file);
    SAYS("line 4: option lease.margin is set twice; line 2 sets it as well");
    write_file(file, "# one\nconnect.timeout = 30\n");
    OK(zkl_config_load(own, file));
    zkl_client *out = NULL;
    int64_t began = now_ms();
    EXPECT(ZKL_E_CONNECTION, zkl_client_new("127.0.0.1:1", own, &out));
    CHECK(now_ms() - began < 5000 + slack_ms());
    CHECK(remove(file) == 0);
    zkl_config_free(own);
}

static void wrong_lengths(void)
{
    static const size_t absurd[] = {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 2 + 1, (size_t)1 << 40, 512 * 1024 + 1};
    const uint8_t byte = 0;
    for (size_t i = 0; i < sizeof absurd / sizeof *absurd; i++) {
        char value[32];
        snprintf(value, sizeof value, "%zu", absurd[i]);
        EXPECT(ZKL_E_INVALID, zkl_lock_set_data(lock, &byte, absurd[i]));
        SAYS(value);
        EXPECT(ZKL_E_INVALID, zkl_lock_set_data(lock, NULL, absurd[i]));
        EXPECT(ZKL_E_INVALID, zkl_semaphore_set_data(semaphore, &byte, absurd[i]));
        SAYS(value);
        EXPECT(ZKL_E_INVALID, zkl_config_add_auth(config, "digest", &byte, absurd[i]));
        SAYS(value);
    }
    EXPECT(ZKL_E_INVALID, zkl_lock_set_data(lock, NULL, 1));
    SAYS("data is NULL");
    EXPECT(ZKL_E_INVALID, zkl_config_add_auth(config, "digest", NULL, 1));
    SAYS("auth is NULL");
    EXPECT(ZKL_E_INVALID, zkl_config_add_auth(config, "", &byte, 1));
    OK(zkl_lock_set_data(lock, NULL, 0));
    OK(zkl_lock_set_data(lock, &byte, 0));
    OK(zkl_lock_set_data(lock, &byte, 1));
    EXPECT(ZKL_E_INVALID, zkl_semaphore_set_data(semaphore, NULL, 1));
    SAYS("data is NULL");
    OK(zkl_semaphore_set_data(semaphore, NULL, 0));
}

static void outputs_that_are_null(void)
{
    EXPECT(ZKL_E_INVALID, zkl_client_new(servers, NULL, NULL));
    SAYS("client_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_mutex_new(client, "/a", NULL));
    SAYS("lock_out is NULL");
    OK(zkl_acquire(lock));
    EXPECT(ZKL_E_INVALID, zkl_fencing_token(lock, NULL));
    SAYS("token_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_fencing_pass(lock, NULL));
    SAYS("pass_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_remaining_ms(lock, NULL));
    SAYS("remaining_ms_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_participants(lock, NULL, NULL));
    SAYS("cb is NULL");
    EXPECT(ZKL_E_INVALID, zkl_queue(lock, NULL, NULL));
    SAYS("cb is NULL");
    EXPECT(ZKL_E_INVALID, zkl_waiting(lock, NULL, NULL));
    SAYS("cb is NULL");
    EXPECT(ZKL_E_INVALID, zkl_semaphore_waiting(semaphore, NULL, NULL));
    SAYS("cb is NULL");
    EXPECT(ZKL_E_INVALID, zkl_semaphore_participants(semaphore, NULL, NULL));
    SAYS("cb is NULL");
    EXPECT(ZKL_E_INVALID, zkl_semaphore_mutex_new(client, "/a", NULL));
    SAYS("lock_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_semaphore_new(client, "/a", 1, NULL));
    SAYS("semaphore_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_semaphore_new_counted(client, "/a", "/b", 1, NULL));
    SAYS("semaphore_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_semaphore_acquire_timeout(semaphore, 1, 0, NULL));
    SAYS("leases_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_acquire_start(lock, 1, 0, NULL));
    SAYS("op_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_semaphore_acquire_start(semaphore, 1, 0, NULL));
    SAYS("op_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_op_leases(op, NULL));
    SAYS("leases_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_fencing_token_as(lock, 0, NULL));
    SAYS("token_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_fencing_pass_as(lock, 0, NULL));
    SAYS("pass_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_remaining_ms_as(lock, 0, NULL));
    SAYS("remaining_ms_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_leases_fencing_token(leases, NULL));
    SAYS("token_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_leases_remaining_ms(leases, NULL));
    SAYS("remaining_ms_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_shared_count_get(client, "/a", NULL));
    SAYS("value_out is NULL");
    char buf[256];
    EXPECT(ZKL_E_INVALID, zkl_lock_node_path(lock, buf, sizeof buf, NULL));
    SAYS("needed_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_lock_node_path_as(lock, 0, buf, sizeof buf, NULL));
    SAYS("needed_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_lock_node_path_as(lock, 0, NULL, sizeof buf, &(size_t){0}));
    SAYS("buf is NULL");
    EXPECT(ZKL_E_INVALID, zkl_leases_node_path(leases, 0, buf, sizeof buf, NULL));
    SAYS("needed_out is NULL");
    OK(zkl_release(lock));
}

static void buffers_that_are_too_small(void)
{
    char buf[256], whole[256];
    size_t needed = 7, size = 0;
    EXPECT(ZKL_E_NOT_OWNER, zkl_lock_node_path(lock, buf, sizeof buf, &needed));
    CHECK(needed == 7);
    OK(zkl_acquire(lock));
    EXPECT(ZKL_E_INVALID, zkl_lock_node_path(lock, NULL, 1, &needed));
    SAYS("buf is NULL");
    EXPECT(ZKL_E_INVALID, zkl_lock_node_path(lock, NULL, SIZE_MAX, &needed));
    CHECK(needed == 7);
    EXPECT(ZKL_E_BUFFER, zkl_lock_node_path(lock, NULL, 0, &size));
    CHECK(size > 1 && size < sizeof buf);
    /* There is as much room as one says. */
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
    SAYS(value);
    /* Neither need be aligned. */
    char bytes[sizeof(size_t) + 1];
    OK(zkl_lock_node_path(lock, buf + 1, size, (size_t *)(void *)(bytes + 1)));
    CHECK(strcmp(buf + 1, whole) == 0 && buf[0] == 'x' && buf[size + 1] == 'x');
    CHECK(memcmp(bytes + 1, &size, sizeof size) == 0);
    OK(zkl_release(lock));
}

/* A lock that comes and goes while threads use it. */
static zkl_lock *_Atomic moving;
static atomic_bool moving_on;

static int is_expected(zkl_status status)
{
    switch (status) {
    case ZKL_OK:
    case ZKL_E_HANDLE:
    case ZKL_E_CLOSED:
    case ZKL_E_TIMEOUT:
    case ZKL_E_CONNECTION: /* The limit is short, and the machine may be slow. */
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
        CHECK(held >= 0 || held == ZKL_E_HANDLE || held == ZKL_E_CLOSED);
        CHECK(is_expected(zkl_fencing_token(here, &token)));
        CHECK(is_expected(zkl_participants(here, count_participant, &count)));
        CHECK(is_expected(zkl_cancel(here)));
        CHECK(is_expected(zkl_lock_set_data(here, (const uint8_t *)"x", 1)));
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

/* A semaphore, and leases of it, that come and go likewise. */
static zkl_semaphore *_Atomic moving_semaphore;
static zkl_leases *_Atomic moving_leases;

static void *use_moving_semaphore(void *unused)
{
    (void)unused;
    while (moving_on) {
        int64_t number;
        int count = 0;
        char buf[256];
        size_t needed;
        zkl_leases *one = NULL;
        zkl_semaphore *here = moving_semaphore;
        CHECK(is_expected(zkl_semaphore_acquire_timeout(here, 1, 20, &one)));
        CHECK(is_expected(zkl_semaphore_participants(here, count_participant, &count)));
        CHECK(is_expected(zkl_semaphore_cancel(here)));
        zkl_leases *there = moving_leases;
        int32_t held = zkl_leases_is_held(there);
        CHECK(held == 0 || held == 1 || held == ZKL_E_HANDLE || held == ZKL_E_CLOSED);
        CHECK(is_expected(zkl_leases_fencing_token(there, &number)));
        CHECK(is_expected(zkl_leases_remaining_ms(there, &number)));
        CHECK(is_expected(zkl_leases_node_path(there, 0, buf, sizeof buf, &needed)));
        if (one != NULL) {
            there = moving_leases;
            moving_leases = one;
            CHECK(is_expected(zkl_leases_release(there)));
        }
    }
    return NULL;
}

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

/* An operation that comes and goes while threads use it, some of which free it. */
static zkl_op *_Atomic moving_op;

static int is_expected_of_op(zkl_status status)
{
    return is_expected(status) || status == ZKL_E_INVALID;
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
    /* Of those that were told to be held somebody has to be the owner. */
    for (uint64_t owner = 1; owner <= 3; owner++) {
        while (zkl_release_as(mine, owner) == ZKL_OK) {
        }
    }
    await_participants(mine, 0);
    zkl_lock_free(mine);
    zkl_client_free(own);
}

/* While a thread is being torn down, its own data is partly gone. */
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

static void *fail_here(void *unused)
{
    (void)unused;
    CHECK(*zkl_last_error_message() == '\0');
    EXPECT(ZKL_E_HANDLE, zkl_client_state(NULL));
    return NULL;
}

static void each_thread_has_its_own_message(void)
{
    pthread_t thread;
    EXPECT(ZKL_E_INVALID, zkl_acquire_timeout(lock, -2));
    CHECK(pthread_create(&thread, NULL, fail_here, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    SAYS("timeout_ms is -2");
    CHECK(strcmp(zkl_strerror(ZKL_E_CLOSED), "") != 0 && zkl_status_errno(ZKL_E_CLOSED) != 0 && zkl_version() != NULL);
    SAYS("timeout_ms is -2");
}

/* What a program does that reports a failure at the end: it cleans up first. */
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
    SAYS("handle is NULL; expected a client");
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    /* The first call of all is a wrong one. */
    EXPECT(ZKL_E_HANDLE, zkl_acquire((zkl_lock *)&servers));
    config = zkl_config_new();
    CHECK(config != NULL);
    client = new_client();
    lock = new_mutex(client, fresh_path());
    semaphore = new_semaphore(client, fresh_path(), 2);
    OK(zkl_semaphore_acquire_timeout(semaphore, 1, 20000, &leases));
    owned = new_mutex(client, fresh_path());
    OK(zkl_acquire_start(owned, 7, 20000, &op));
    OK(zkl_op_wait(op, -1));
    RUN(wrong_configs);
    RUN(wrong_clients);
    RUN(wrong_locks);
    RUN(wrong_semaphores);
    RUN(wrong_leases);
    RUN(wrong_ops);
    RUN(messages_tell_what_a_handle_is);
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
    RUN(each_thread_has_its_own_message);
    RUN(the_last_message_stays_until_the_next_failure);

    /* After all that, everything still works. */
    OK(zkl_acquire(lock));
    OK(zkl_release(lock));
    CHECK(zkl_client_state(client) == ZKL_STATE_CONNECTED);
    OK(zkl_leases_release(leases));
    OK(zkl_op_result(op));
    zkl_op_free(op);
    OK(zkl_release_as(owned, 7));
    zkl_lock_free(owned);
    zkl_semaphore_free(semaphore);
    zkl_client_free(client);
    zkl_lock_free(lock);
    zkl_config_free(config);
    return 0;
}
