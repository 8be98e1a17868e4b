/* Whatever a program does wrong has a status and a message, changes nothing, and never crashes. */
#include "check.h"

#include <stdatomic.h>
#include <stdbool.h>

enum { BAD = 12 };

static zkl_config *config;
static zkl_client *client;
static zkl_lock *lock;

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
        zkl_config_free(bad);
        if (bad == NULL) {
            CHECK(*zkl_last_error_message() == '\0');
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
        REFUSES(zkl_client_state(bad));
        CHECK(zkl_client_session_id(bad) == 0);
        says_handle(bad, expected);
        REFUSES(zkl_mutex_new(bad, "/a", &out));
        CHECK(out == (zkl_lock *)&all);
        zkl_client_free(bad);
        if (bad == NULL) {
            CHECK(*zkl_last_error_message() == '\0');
        } else {
            says_handle(bad, expected);
        }
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
        REFUSES(zkl_remaining_ms(bad, &out));
        REFUSES(zkl_lock_set_data(bad, (const uint8_t *)"x", 1));
        REFUSES(zkl_participants(bad, count_participant, &out));
        CHECK(out == -7);
        zkl_lock_free(bad);
        if (bad == NULL) {
            CHECK(*zkl_last_error_message() == '\0');
        } else {
            says_handle(bad, expected);
        }
    }
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
    zkl_lock_free(freed);
    SAYS("was freed");
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
    }
    CHECK(lock_out == (zkl_lock *)&lock_out);
    CHECK(client_out == (zkl_client *)&client_out);
}

static void wrong_paths(void)
{
    static const char *const paths[] = {"", "/", "a", "a/b", "/a/", "//a", "/a//b", "/./a", "/a/..", "/a\tb", "/zookeeper/a"};
    zkl_lock *out = (zkl_lock *)&out;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        EXPECT(ZKL_E_INVALID, zkl_mutex_new(client, paths[i], &out));
        SAYS("path \"");
    }
    enum { LONG = 100 * 1024 };
    char *path = malloc(LONG + 1);
    memset(path, 'x', LONG);
    path[0] = '/';
    path[LONG] = '\0';
    EXPECT(ZKL_E_INVALID, zkl_mutex_new(client, path, &out));
    SAYS("102400");
    CHECK(strlen(zkl_last_error_message()) < 400);
    free(path);
    CHECK(out == (zkl_lock *)&out);
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
    EXPECT(ZKL_E_INVALID, zkl_remaining_ms(lock, NULL));
    SAYS("remaining_ms_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_participants(lock, NULL, NULL));
    SAYS("cb is NULL");
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
        CHECK(zkl_is_held(here) >= 0 || zkl_is_held(here) == ZKL_E_HANDLE || zkl_is_held(here) == ZKL_E_CLOSED);
        CHECK(is_expected(zkl_fencing_token(here, &token)));
        CHECK(is_expected(zkl_participants(here, count_participant, &count)));
        CHECK(is_expected(zkl_cancel(here)));
        CHECK(is_expected(zkl_lock_set_data(here, (const uint8_t *)"x", 1)));
        if (status == ZKL_OK) CHECK(is_expected(zkl_release(here)));
    }
    return NULL;
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
        CHECK(*zkl_last_error_message() == '\0');
    }
    moving_on = false;
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(participants(moving) == 0);
    zkl_lock_free(moving);
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

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    /* The first call of all is a wrong one. */
    EXPECT(ZKL_E_HANDLE, zkl_acquire((zkl_lock *)&servers));
    config = zkl_config_new();
    CHECK(config != NULL);
    client = new_client();
    lock = new_mutex(client, fresh_path());
    RUN(wrong_configs);
    RUN(wrong_clients);
    RUN(wrong_locks);
    RUN(messages_tell_what_a_handle_is);
    RUN(freed_handles_stay_dead);
    RUN(wrong_texts);
    RUN(wrong_paths);
    RUN(wrong_servers);
    RUN(wrong_numbers);
    RUN(wrong_lengths);
    RUN(outputs_that_are_null);
    RUN(handles_are_freed_while_they_are_used);
    RUN(calls_from_a_thread_at_its_end);
    RUN(each_thread_has_its_own_message);

    /* After all that, everything still works. */
    OK(zkl_acquire(lock));
    OK(zkl_release(lock));
    CHECK(zkl_client_state(client) == ZKL_STATE_CONNECTED);
    zkl_client_free(client);
    zkl_lock_free(lock);
    zkl_config_free(config);
    CHECK(*zkl_last_error_message() == '\0');
    return 0;
}
