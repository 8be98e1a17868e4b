/* What an operator does to a lock's node, by ZooKeeper's own C client: its holder is told that it is lost. */
#define THREADED
#include "check.h"

#include <zookeeper/zookeeper.h>

static zhandle_t *admin;
static zkl_client *client, *other;

/* The losses that were told. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int lost;
static int64_t lost_token;

static void hear(void *user, const zkl_event *event)
{
    (void)user;
    if (event->kind != ZKL_EVENT_LOCK || event->state != ZKL_LOCK_LOST) return;
    pthread_mutex_lock(&mutex);
    lost++;
    lost_token = event->token;
    pthread_mutex_unlock(&mutex);
}

static int losses(void)
{
    pthread_mutex_lock(&mutex);
    int count = lost;
    pthread_mutex_unlock(&mutex);
    return count;
}

/* Deletes a node; its holder hears of it within a heartbeat. */
static void take_away(const char *node, int64_t token)
{
    int before = losses();
    int64_t start = now_ms();
    CHECK(zoo_delete(admin, node, -1) == ZOK);
    AWAIT(losses() == before + 1);
    CHECK(lost_token == token);
    CHECK(now_ms() - start < 1000 + slack_ms()); /* A sixth of the session timeout. */
}

static void each_kind_of_lock_is_lost(void)
{
    const char *path = fresh_path();
    zkl_lock *read, *write;
    OK(zkl_rwlock_new(client, path, &read, &write));
    zkl_lock *locks[] = {new_mutex(client, path), new_semaphore_mutex(client, path), read, write};
    for (int i = 0; i < 4; i++) {
        char node[256];
        size_t needed;
        int64_t token;
        OK(acquire_in_time(locks[i]));
        OK(zkl_fencing_token(locks[i], &token));
        OK(zkl_lock_node_path(locks[i], node, sizeof node, &needed));
        take_away(node, token);
        CHECK(zkl_lock_state(locks[i]) == ZKL_LOCK_LOST && zkl_is_held(locks[i]) == 0);
        CHECK(zkl_fence_check(other, path, token) == 0);
        EXPECT(ZKL_E_LOST, zkl_fencing_token(locks[i], &token));
        EXPECT(ZKL_E_LOST, zkl_release(locks[i]));
        SAYS("deleted");
        OK(take_turn(locks[i]));
        zkl_lock_free(locks[i]);
    }
}

static void one_lease_is_enough_and_one_lock_of_several(void)
{
    zkl_semaphore *semaphore = new_semaphore(client, fresh_path(), 3);
    zkl_leases *leases = NULL;
    char node[256];
    size_t needed;
    int64_t token;
    OK(zkl_semaphore_acquire_timeout(semaphore, 3, 20000, &leases));
    OK(zkl_leases_fencing_token(leases, &token));
    OK(zkl_leases_node_path(leases, 1, node, sizeof node, &needed));
    take_away(node, token);
    CHECK(zkl_leases_is_held(leases) == 0 && zkl_leases_state(leases) == ZKL_LOCK_LOST);
    EXPECT(ZKL_E_LOST, zkl_leases_release(leases));
    zkl_semaphore_free(semaphore);

    zkl_lock *one = new_mutex(client, fresh_path()), *two = new_mutex(client, fresh_path()), *both = new_multi(one, two);
    OK(acquire_in_time(both));
    OK(zkl_fencing_token(both, &token));
    OK(zkl_lock_node_path(two, node, sizeof node, &needed));
    take_away(node, token);
    CHECK(zkl_lock_state(both) == ZKL_LOCK_LOST && zkl_lock_state(one) == ZKL_LOCK_HELD);
    EXPECT(ZKL_E_LOST, zkl_release(both));
    zkl_lock_free(both);
    zkl_lock_free(one);
    zkl_lock_free(two);
}

/* Keeps the path of the last node that waits. */
static void keep_waiter(void *user, const zkl_participant *participant)
{
    if (!participant->holds) snprintf(user, 256, "%s", participant->node_path);
}

static void who_waits_joins_again(void)
{
    const char *path = fresh_path();
    zkl_lock *held = new_mutex(client, path), *wanted = new_mutex(other, path);
    struct call call;
    char before[256] = "", after[256] = "";
    int told = losses();
    OK(zkl_acquire(held));
    start_call(&call, take_turn, wanted);
    await_participants(held, 2);
    OK(zkl_participants(held, keep_waiter, before));
    CHECK(zoo_delete(admin, before, -1) == ZOK);
    AWAIT((zkl_participants(held, keep_waiter, after) == ZKL_OK) && after[0] != '\0' && strcmp(before, after) != 0);
    OK(zkl_release(held));
    CHECK(end_call(&call) == ZKL_OK && losses() == told);
    zkl_lock_free(held);
    zkl_lock_free(wanted);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
    admin = zookeeper_init(servers, NULL, 60000, NULL, NULL, 0);
    CHECK(admin != NULL);
    AWAIT(zoo_state(admin) == ZOO_CONNECTED_STATE);
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set_session_timeout_ms(config, 4000));
    OK(zkl_config_set_event_callback(config, hear, NULL, NULL));
    OK(zkl_client_new(servers, config, &client));
    zkl_config_free(config);
    other = new_client();
    RUN(each_kind_of_lock_is_lost);
    RUN(one_lease_is_enough_and_one_lock_of_several);
    RUN(who_waits_joins_again);
    zkl_client_free(client);
    zkl_client_free(other);
    CHECK(zookeeper_close(admin) == ZOK);
    return 0;
}
