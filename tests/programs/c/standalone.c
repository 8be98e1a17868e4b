/* A C program that tests itself with a ZooKeeper server in its own process. It injects faults into the server. */
#include "check.h"

#include <sys/wait.h>
#include <zklock_standalone.h>

/* Checks that the call returns this status, and that it sets a message only if it fails. */
#define SERVER_EXPECT(expected, call)                                                                                          \
    do {                                                                                                                       \
        zkl_status expected_ = (call);                                                                                         \
        if (expected_ != (expected)) fprintf(stderr, "\"%s\"\n", zkl_standalone_last_error_message());                          \
        CHECK(expected_ == (expected));                                                                                        \
        if ((expected) != ZKL_OK) CHECK(*zkl_standalone_last_error_message() != '\0');                                         \
    } while (0)

#define SERVER_OK(call) SERVER_EXPECT(ZKL_OK, call)
#define SERVER_SAYS(text) CHECK(strstr(zkl_standalone_last_error_message(), (text)) != NULL)

static zkl_standalone *server;

static zkl_standalone *start(const char *address)
{
    zkl_standalone *started = NULL;
    SERVER_OK(zkl_standalone_start(address, &started));
    CHECK(started != NULL);
    return started;
}

static zkl_client *client_with_timeout(int32_t ms)
{
    zkl_config *config = zkl_config_new();
    zkl_client *client = NULL;
    OK(zkl_config_set_session_timeout_ms(config, ms));
    OK(zkl_client_new(servers, config, &client));
    zkl_config_free(config);
    return client;
}

static void await_state(zkl_lock *lock, int32_t state)
{
    int64_t deadline = now_ms() + 60000;
    while (zkl_lock_state(lock) != state) {
        CHECK(now_ms() < deadline);
        sleep_ms(1);
    }
}

/* If the session of a holder expires, the lock becomes LOST and can be acquired again after a release. */
static void expired_session_makes_its_lock_lost(void)
{
    zkl_client *client = new_client();
    zkl_lock *lock = new_mutex(client, fresh_path());
    OK(zkl_acquire(lock));
    CHECK(zkl_is_held(lock) == 1);
    SERVER_OK(zkl_standalone_expire(server, zkl_client_session_id(client)));
    await_state(lock, ZKL_LOCK_LOST);
    CHECK(zkl_is_held(lock) == 0);
    EXPECT(ZKL_E_LOST, zkl_release(lock));
    OK(zkl_acquire_timeout(lock, 60000));
    OK(zkl_release(lock));
    zkl_lock_free(lock);
    zkl_client_free(client);
}

static zkl_metrics metrics_of(zkl_client *client)
{
    zkl_metrics metrics;
    OK(zkl_client_metrics(client, sizeof metrics, &metrics));
    return metrics;
}

/* The metrics count reconnections and losses. */
static void losses_and_reconnects_are_counted(void)
{
    zkl_client *client = new_client();
    zkl_lock *lock = new_mutex(client, fresh_path());
    OK(zkl_acquire(lock));
    SERVER_OK(zkl_standalone_cut(server, zkl_client_session_id(client)));
    AWAIT(metrics_of(client).reconnects == 1);
    await_state(lock, ZKL_LOCK_HELD);
    zkl_metrics cut = metrics_of(client);
    CHECK(cut.connections == 2 && cut.connections_lost == 1 && cut.suspensions == 1);
    CHECK(cut.sessions == 1 && cut.sessions_lost == 0 && cut.held == 1);
    SERVER_OK(zkl_standalone_expire(server, zkl_client_session_id(client)));
    AWAIT(metrics_of(client).sessions == 2);
    EXPECT(ZKL_E_LOST, zkl_release(lock));
    zkl_metrics lost = metrics_of(client);
    CHECK(lost.sessions_lost == 1 && lost.held == 0 && lost.releases == 0 && lost.holds.count == 1);
    /* The server may report the deletion of the node to a connected client before it reports the end of the session. */
    CHECK(lost.losses_session + lost.losses_deleted == 1);
    zkl_lock_free(lock);
    zkl_client_free(client);
}

/* If a session expires, its leases become LOST. */
static void leases_whose_session_expires_are_lost(void)
{
    zkl_client *client = new_client();
    const char *path = fresh_path();
    zkl_semaphore *semaphore = new_semaphore(client, path, 2);
    zkl_hold *two = NULL;
    int64_t number = -7;
    OK(zkl_semaphore_acquire_timeout(semaphore, 2, 60000, &two));
    SERVER_OK(zkl_standalone_expire(server, zkl_client_session_id(client)));
    AWAIT(hold_state(two) == ZKL_LOCK_LOST);
    CHECK(zkl_hold_is_held(two) == 0);
    /* The token is known also after a loss. */
    OK(hold_token(two, &number));
    CHECK(number > 0);
    OK(hold_remaining(two, &number));
    CHECK(number == 0);
    /* The call frees the handle of the leases although it reports the loss. */
    EXPECT(ZKL_E_LOST, zkl_hold_release(two));
    EXPECT(ZKL_E_HANDLE, zkl_hold_release(two));
    OK(zkl_semaphore_acquire_timeout(semaphore, 2, 60000, &two));
    OK(zkl_hold_release(two));
    zkl_semaphore_free(semaphore);
    zkl_client_free(client);
}

/* The state of a multi-lock is the worst state of its member locks. */
static void multi_lock_state_is_its_worst_members(void)
{
    zkl_client *client = new_client(), *closing = new_client();
    zkl_lock *one = new_mutex(client, fresh_path()), *two = new_semaphore_mutex(closing, fresh_path()), *both = new_multi(one, two);
    int64_t token;
    OK(zkl_acquire_timeout(both, 60000));
    SERVER_OK(zkl_standalone_expire(server, zkl_client_session_id(closing)));
    await_state(both, ZKL_LOCK_LOST);
    CHECK(zkl_lock_state(two) == ZKL_LOCK_LOST && zkl_lock_state(one) == ZKL_LOCK_HELD);
    CHECK(zkl_is_held(both) == 0 && zkl_is_held(one) == 1);
    EXPECT(ZKL_E_LOST, zkl_fencing_token(both, &token));
    EXPECT(ZKL_E_LOST, zkl_acquire_timeout(both, 60000));
    EXPECT(ZKL_E_LOST, zkl_release(both));
    CHECK(zkl_lock_state(both) == ZKL_LOCK_FREE && zkl_is_held(one) == 0);
    OK(zkl_acquire_timeout(both, 60000));
    OK(zkl_release(both));
    zkl_lock_free(one);
    zkl_lock_free(two);
    zkl_lock_free(both);
    zkl_client_free(closing);
    zkl_client_free(client);
}

/* If no server answers, the release of leases fails, and their session expires without them. */
static void leases_are_released_locally_without_server(void)
{
    zkl_client *cut_off = client_with_timeout(1000), *other = new_client();
    const char *path = fresh_path();
    zkl_semaphore *semaphore = new_semaphore(cut_off, path, 1), *wanted = new_semaphore(other, path, 1);
    zkl_hold *one = NULL;
    OK(zkl_semaphore_acquire_timeout(semaphore, 1, 60000, &one));
    int64_t session = zkl_client_session_id(cut_off);
    SERVER_OK(zkl_standalone_freeze(server, session));
    zkl_status status = zkl_hold_release(one);
    CHECK(status == ZKL_E_CONNECTION || status == ZKL_E_LOST);
    EXPECT(ZKL_E_HANDLE, zkl_hold_release(one));
    OK(zkl_semaphore_acquire_timeout(wanted, 1, 60000, &one));
    SERVER_OK(zkl_standalone_thaw(server, session));
    OK(zkl_hold_release(one));
    zkl_semaphore_free(semaphore);
    zkl_semaphore_free(wanted);
    zkl_client_free(cut_off);
    zkl_client_free(other);
}

/* If a holder is frozen, a waiter is granted the lock after the session timeout. */
static void waiter_proceeds_after_a_frozen_holder(void)
{
    zkl_client *frozen = client_with_timeout(1000), *other = new_client();
    const char *path = fresh_path();
    zkl_lock *held = new_mutex(frozen, path), *wanted = new_mutex(other, path);
    OK(zkl_acquire(held));
    int64_t session = zkl_client_session_id(frozen);
    SERVER_OK(zkl_standalone_freeze(server, session));
    OK(zkl_acquire_timeout(wanted, 60000));
    CHECK(zkl_is_held(held) == 0);
    SERVER_OK(zkl_standalone_thaw(server, session));
    await_state(held, ZKL_LOCK_LOST);
    zkl_lock_free(held);
    zkl_lock_free(wanted);
    zkl_client_free(frozen);
    zkl_client_free(other);
}

/* A hold survives a reset connection and a restart of the server. */
static void a_holder_survives_a_cut_and_a_restart(void)
{
    zkl_client *client = new_client();
    zkl_lock *lock = new_mutex(client, fresh_path());
    OK(zkl_acquire(lock));
    SERVER_OK(zkl_standalone_cut(server, zkl_client_session_id(client)));
    CHECK(participants(lock) == 1);
    SERVER_OK(zkl_standalone_halt(server));
    await_state(lock, ZKL_LOCK_SUSPENDED);
    SERVER_OK(zkl_standalone_restart(server));
    await_state(lock, ZKL_LOCK_HELD);
    OK(zkl_release(lock));
    zkl_lock_free(lock);
    zkl_client_free(client);
}

/* A delayed server delays an acquire. */
static void delay_slows_the_client(void)
{
    zkl_client *client = new_client();
    zkl_lock *lock = new_mutex(client, fresh_path());
    SERVER_OK(zkl_standalone_delay_ms(server, 0, 200));
    int64_t start = now_ms();
    OK(zkl_acquire(lock));
    CHECK(now_ms() - start >= 200);
    SERVER_OK(zkl_standalone_delay_ms(server, 0, 0));
    OK(zkl_release(lock));
    zkl_lock_free(lock);
    zkl_client_free(client);
}

/* A lost reply to any request of a cycle leaves no orphaned node. */
static void lost_reply_leaves_no_orphaned_node(void)
{
    static const int32_t ops[] = {ZKL_OP_CREATE2, ZKL_OP_GET_CHILDREN2, ZKL_OP_DELETE};
    zkl_client *client = new_client();
    zkl_lock *lock = new_mutex(client, fresh_path());
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        SERVER_OK(zkl_standalone_lose_reply(server, zkl_client_session_id(client), ops[i]));
        OK(zkl_acquire_timeout(lock, 60000));
        CHECK(participants(lock) == 1);
        OK(zkl_release(lock));
        CHECK(participants(lock) == 0);
    }
    zkl_lock_free(lock);
    zkl_client_free(client);
}

/* Invalid handles, addresses and sessions return a status and set a message. */
static void misuse_has_a_status(void)
{
    zkl_standalone *stopped = start("127.0.0.1:0"), *other = NULL;
    zkl_client *client = new_client();
    char address[64];
    snprintf(address, sizeof address, "%s", zkl_standalone_address(stopped));
    SERVER_EXPECT(ZKL_E_SERVER, zkl_standalone_start(address, &other));
    SERVER_SAYS(address);
    zkl_standalone_stop(stopped);
    /* The address is free again. */
    zkl_standalone *again = start(address);
    CHECK(strcmp(zkl_standalone_address(again), address) == 0);

    zkl_standalone *const bad[] = {NULL, stopped, (zkl_standalone *)(uintptr_t)client, (zkl_standalone *)UINTPTR_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        SERVER_EXPECT(ZKL_E_HANDLE, zkl_standalone_expire(bad[i], 0));
        SERVER_EXPECT(ZKL_E_HANDLE, zkl_standalone_cut(bad[i], 0));
        SERVER_EXPECT(ZKL_E_HANDLE, zkl_standalone_freeze(bad[i], 0));
        SERVER_EXPECT(ZKL_E_HANDLE, zkl_standalone_thaw(bad[i], 0));
        SERVER_EXPECT(ZKL_E_HANDLE, zkl_standalone_delay_ms(bad[i], 0, 1));
        SERVER_EXPECT(ZKL_E_HANDLE, zkl_standalone_lose_reply(bad[i], 0, ZKL_OP_PING));
        SERVER_EXPECT(ZKL_E_HANDLE, zkl_standalone_halt(bad[i]));
        SERVER_EXPECT(ZKL_E_HANDLE, zkl_standalone_restart(bad[i]));
        CHECK(zkl_standalone_address(bad[i]) == NULL);
        SERVER_SAYS("a standalone server");
        zkl_standalone_stop(bad[i]);
        SERVER_SAYS("a standalone server");
    }
    EXPECT(ZKL_E_HANDLE, zkl_client_state((zkl_client *)(uintptr_t)again));
    EXPECT_MESSAGE(" is a standalone server; expected a client");

    SERVER_EXPECT(ZKL_E_INVALID, zkl_standalone_start("nonsense", &other));
    SERVER_EXPECT(ZKL_E_INVALID, zkl_standalone_start("\xff", &other));
    SERVER_EXPECT(ZKL_E_INVALID, zkl_standalone_start(NULL, NULL));
    SERVER_SAYS("server_out is NULL");
    CHECK(other == NULL);
    SERVER_EXPECT(ZKL_E_INVALID, zkl_standalone_expire(again, 77));
    SERVER_SAYS("no session 0x4d");
    SERVER_EXPECT(ZKL_E_INVALID, zkl_standalone_delay_ms(again, 0, -1));
    SERVER_EXPECT(ZKL_E_INVALID, zkl_standalone_lose_reply(again, 0, 12345));
    SERVER_OK(zkl_standalone_cut(again, 0));
    zkl_standalone_stop(again);
    zkl_client_free(client);
}

/* A forked child cannot use the server of its parent, but it can start its own. */
static void a_forked_child_leaves_the_server_alone(void)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        SERVER_EXPECT(ZKL_E_FORKED, zkl_standalone_cut(server, 0));
        SERVER_SAYS("make a standalone server in the child");
        zkl_standalone_stop(server);
        SERVER_SAYS("make a standalone server in the child");
        zkl_standalone *own = start(NULL);
        SERVER_OK(zkl_standalone_halt(own));
        zkl_standalone_stop(own);
        /* Do not use _exit: valgrind would then report memory that is in use, because only threads of the parent refer
         * to it. */
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    zkl_client_free(new_client());
}

int main(int argc, char **argv)
{
    begin(argc, argv, 0);
    server = start(NULL);
    servers = zkl_standalone_address(server);
    RUN(expired_session_makes_its_lock_lost);
    RUN(losses_and_reconnects_are_counted);
    RUN(leases_whose_session_expires_are_lost);
    RUN(leases_are_released_locally_without_server);
    RUN(multi_lock_state_is_its_worst_members);
    RUN(waiter_proceeds_after_a_frozen_holder);
    RUN(a_holder_survives_a_cut_and_a_restart);
    RUN(delay_slows_the_client);
    RUN(lost_reply_leaves_no_orphaned_node);
    RUN(misuse_has_a_status);
    RUN(a_forked_child_leaves_the_server_alone);
    zkl_standalone_stop(server);
    return 0;
}
