/* Credentials that a callback or a file supplies, and the options for credentials. */
#include "check.h"

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* The user pointer of the callback. */
struct source {
    /* The result of the callback, if it is negative or larger than the buffer. */
    int64_t result;
    const char *credentials;
    atomic_int calls;
    atomic_int drops;
    atomic_bool hangs;
    /* If set, the callback tries to acquire this lock, and stores the status. */
    zkl_lock *lock;
    zkl_status status;
    /* If set, the callback forks a child and returns in both processes. */
    bool forks;
    pid_t child;
};

static int64_t supply(void *user, char *buf, size_t size)
{
    struct source *source = user;
    CHECK(size == 65536);
    int call = atomic_fetch_add(&source->calls, 1);
    while (atomic_load(&source->hangs)) sleep_ms(1);
    if (source->lock != NULL) source->status = zkl_acquire(source->lock);
    if (source->forks) {
        source->forks = false;
        source->child = fork();
        CHECK(source->child >= 0);
    }
    if (source->result != 0) return source->result;
    if (source->credentials != NULL) return snprintf(buf, size, "%s", source->credentials);
    return snprintf(buf, size, "alice:password-%d", call);
}

static void drop(void *user)
{
    atomic_fetch_add(&((struct source *)user)->drops, 1);
}

static zkl_config *config_with(struct source *source)
{
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set_auth_callback(config, "digest", supply, source, drop));
    return config;
}

/* Ends the connections of this process to the server. */
static void cut(void)
{
    unsigned port = (unsigned)atoi(strrchr(servers, ':') + 1);
    DIR *directory = opendir("/proc/self/fd");
    CHECK(directory != NULL);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        struct sockaddr_in peer;
        socklen_t length = sizeof peer;
        int fd = atoi(entry->d_name);
        if (getpeername(fd, (struct sockaddr *)&peer, &length) != 0 || peer.sin_family != AF_INET) continue;
        if (ntohs(peer.sin_port) == port) shutdown(fd, SHUT_RDWR);
    }
    closedir(directory);
}

static void callback_is_called_for_each_connection(void)
{
    struct source source = {0};
    zkl_config *config = config_with(&source);
    zkl_client *client = NULL;
    OK(zkl_client_new(servers, config, &client));
    zkl_config_free(config);
    CHECK(source.calls == 1 && source.drops == 0);
    zkl_lock *lock = new_mutex(client, fresh_path());
    OK(zkl_acquire(lock));
    int64_t session = zkl_client_session_id(client);
    cut();
    AWAIT(source.calls >= 2 && zkl_client_state(client) == ZKL_STATE_CONNECTED);
    CHECK(zkl_client_session_id(client) == session && zkl_is_held(lock) == 1);
    OK(zkl_release(lock));
    zkl_lock_free(lock);
    zkl_client_free(client);
    CHECK(source.drops == 1);
}

static void failure_of_the_callback_is_an_auth_error_at_once(void)
{
    static const struct {
        int64_t result;
        const char *credentials, *message;
    } cases[] = {
        {-5, NULL, "the auth callback for \"digest\" failed: it returned -5"},
        {INT64_MIN, NULL, "failed: it returned -9223372036854775808"},
        {65537, NULL, "failed: it returned 65537; expected at most 65536"},
        {INT64_MAX, NULL, "failed: it returned 9223372036854775807; expected at most 65536"},
        {0, "hunter2", "the auth callback for \"digest\" returned no user:password"},
        {0, "", "returned no user:password"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct source source = {.result = cases[i].result, .credentials = cases[i].credentials};
        zkl_config *config = config_with(&source);
        zkl_client *client = NULL;
        EXPECT(ZKL_E_AUTH, zkl_client_new(servers, config, &client));
        EXPECT_MESSAGE(cases[i].message);
        CHECK(client == NULL && strstr(zkl_last_error_message(), "hunter2") == NULL);
        zkl_config_free(config);
        AWAIT(source.drops == 1);
    }
}

static void callback_is_replaced_by_scheme(void)
{
    struct source first = {0}, second = {0}, other = {0};
    zkl_config *config = config_with(&first);
    OK(zkl_config_set_auth_callback(config, "another-scheme", supply, &other, drop));
    OK(zkl_config_set_auth_callback(config, "digest", supply, &second, drop));
    CHECK(first.drops == 1 && other.drops == 0);
    OK(zkl_config_set_auth_callback(config, "another-scheme", NULL, &first, drop));
    CHECK(first.drops == 2 && other.drops == 1);
    zkl_client *client = NULL;
    OK(zkl_client_new(servers, config, &client));
    CHECK(first.calls == 0 && second.calls == 1 && other.calls == 0);
    zkl_client_free(client);
    CHECK(second.drops == 0);
    EXPECT(ZKL_E_INVALID, zkl_config_set_auth_callback(config, NULL, supply, &first, drop));
    EXPECT_MESSAGE("scheme is NULL");
    EXPECT(ZKL_E_INVALID, zkl_config_set_auth_callback(config, "", supply, &first, drop));
    EXPECT_MESSAGE("auth scheme \"\"");
    zkl_config_free(config);
    CHECK(second.drops == 1);
    EXPECT(ZKL_E_HANDLE, zkl_config_set_auth_callback(config, "digest", supply, &first, drop));
    CHECK(first.drops == 2);
}

static void callback_that_hangs_delays_no_deadline(void)
{
    struct source source = {.hangs = true};
    zkl_config *config = config_with(&source);
    OK(zkl_config_set_connect_timeout_ms(config, 300));
    zkl_client *client = NULL;
    int64_t start = now_ms();
    EXPECT(ZKL_E_CONNECTION, zkl_client_new(servers, config, &client));
    EXPECT_MESSAGE("the client has not loaded the result of the auth callback for \"digest\" in time");
    CHECK(now_ms() - start < 300 + slack_ms());
    source.hangs = false;
    OK(zkl_config_set_connect_timeout_ms(config, 60000));
    OK(zkl_client_new(servers, config, &client));
    source.hangs = true;
    /* The first client calls the callback only if its loader thread started within the 300 ms. */
    int calls = source.calls;
    cut();
    AWAIT(source.calls > calls);
    start = now_ms();
    zkl_lock *lock = new_mutex(client, fresh_path());
    EXPECT(ZKL_E_CONNECTION, zkl_acquire_timeout(lock, 200));
    CHECK(now_ms() - start < 200 + slack_ms());
    zkl_lock_free(lock);
    zkl_client_free(client);
    CHECK(now_ms() - start < 2200 + 2 * slack_ms());
    zkl_config_free(config);
    CHECK(source.drops == 0);
    source.hangs = false;
    AWAIT(source.drops == 1);
}

static void callback_must_not_wait_for_a_lock(void)
{
    zkl_client *other = new_client(), *client = NULL;
    struct source source = {.lock = new_mutex(other, fresh_path())};
    zkl_config *config = config_with(&source);
    OK(zkl_client_new(servers, config, &client));
    CHECK(source.status == ZKL_E_DEADLOCK);
    zkl_config_free(config);
    zkl_client_free(client);
    zkl_lock_free(source.lock);
    zkl_client_free(other);
}

static void child_of_the_callback_ends_when_the_callback_returns(void)
{
    struct source source = {.forks = true};
    zkl_config *config = config_with(&source);
    zkl_client *client = NULL;
    int status;
    OK(zkl_client_new(servers, config, &client));
    CHECK(waitpid(source.child, &status, 0) == source.child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    zkl_lock *lock = new_mutex(client, fresh_path());
    OK(zkl_acquire(lock));
    zkl_lock_free(lock);
    zkl_config_free(config);
    zkl_client_free(client);
    CHECK(source.drops == 1);
}

static void options_for_credentials(void)
{
    zkl_config *config = zkl_config_new();
    zkl_client *client = NULL;
    EXPECT(ZKL_E_INVALID, zkl_config_set(config, "auth.digest", "hunter2"));
    CHECK(strcmp(zkl_last_error_message(), "option auth.digest is not valid; expected user:password") == 0);
    OK(zkl_config_set(config, "auth.digest", "alice:password"));
    OK(zkl_client_new(servers, config, &client));
    zkl_client_free(client);
    OK(zkl_config_set(config, "auth.digest_file", "/nowhere/password"));
    EXPECT(ZKL_E_INVALID, zkl_client_new(servers, config, &client));
    EXPECT_MESSAGE("auth.digest and auth.digest_file are both set");
    zkl_config_free(config);

    char file[] = "/tmp/zklock-credentials-XXXXXX";
    int fd = mkstemp(file);
    CHECK(fd >= 0 && write(fd, "alice:password\n", 15) == 15);
    close(fd);
    config = zkl_config_new();
    OK(zkl_config_set(config, "auth.digest_file", file));
    OK(zkl_client_new(servers, config, &client));
    zkl_client_free(client);
    CHECK(unlink(file) == 0);
    EXPECT(ZKL_E_INVALID, zkl_client_new(servers, config, &client));
    EXPECT_MESSAGE(file);
    EXPECT_MESSAGE("No such file");
    zkl_config_free(config);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    RUN(callback_is_called_for_each_connection);
    RUN(failure_of_the_callback_is_an_auth_error_at_once);
    RUN(callback_is_replaced_by_scheme);
    RUN(callback_that_hangs_delays_no_deadline);
    RUN(callback_must_not_wait_for_a_lock);
    RUN(child_of_the_callback_ends_when_the_callback_returns);
    RUN(options_for_credentials);
    return 0;
}
