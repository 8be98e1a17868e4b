/* An operator deletes the node of a lock with ZooKeeper's own C client. The holder must become LOST. */
#include "admin.h"

static zkl_client *client, *other;

/* The number of losses that events have reported. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int lost;
static int64_t lost_token;

static void on_event(void *user, const zkl_event *event)
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

/* Deletes a node. Its holder receives the event within a heartbeat. */
static void take_away(const char *node, int64_t token)
{
    int before = losses();
    int64_t start = now_ms();
    CHECK(zoo_delete(admin, node, -1) == ZOK);
    AWAIT(losses() == before + 1);
    CHECK(lost_token == token);
    CHECK(now_ms() - start < 1000 + slack_ms()); /* A heartbeat is a sixth of the session timeout. */
}

/* If an operator deletes the node of a hold, the lock becomes LOST, for each kind of lock. */
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
        CHECK(is_valid(other, path, token) == 0);
        EXPECT(ZKL_E_LOST, zkl_fencing_token(locks[i], &token));
        EXPECT(ZKL_E_LOST, zkl_release(locks[i]));
        EXPECT_MESSAGE("deleted");
        OK(acquire_and_release(locks[i]));
        zkl_lock_free(locks[i]);
    }
}

/* The deletion of one node makes all leases of a hold, or a whole multi-lock, LOST. */
static void deletion_of_one_lease_or_member_is_a_loss(void)
{
    zkl_semaphore *semaphore = new_semaphore(client, fresh_path(), 3);
    zkl_leases *leases = NULL;
    char node[256];
    size_t needed;
    int64_t token;
    OK(zkl_semaphore_acquire_timeout(semaphore, 3, 60000, &leases));
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

/* Copies the path of the last node that waits. */
static void keep_waiter(void *user, const zkl_participant *participant)
{
    if (!participant->holds) snprintf(user, 256, "%s", participant->node_path);
}

/* A waiter whose node is deleted joins the queue again. */
static void waiter_rejoins_after_its_node_is_deleted(void)
{
    const char *path = fresh_path();
    zkl_lock *held = new_mutex(client, path), *wanted = new_mutex(other, path);
    struct call call;
    char before[256] = "", after[256] = "";
    int told = losses();
    OK(zkl_acquire(held));
    start_call(&call, acquire_and_release, wanted);
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
    connect_admin();
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set_session_timeout_ms(config, 4000));
    OK(zkl_config_set_event_callback(config, on_event, NULL, NULL));
    OK(zkl_client_new(servers, config, &client));
    zkl_config_free(config);
    other = new_client();
    RUN(each_kind_of_lock_is_lost);
    RUN(deletion_of_one_lease_or_member_is_a_loss);
    RUN(waiter_rejoins_after_its_node_is_deleted);
    zkl_client_free(client);
    zkl_client_free(other);
    CHECK(zookeeper_close(admin) == ZOK);
    return 0;
}
