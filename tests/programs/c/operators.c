/* An operator deletes the node of a lock with ZooKeeper's own C client. The holder must become LOST. */
#include "admin.h"

/* A loss that the client notices only at the end of a session would exceed the tolerance for a busy machine. */
enum { SESSION_MS = 20000 };

static zkl_client *client, *other;

/* The losses that events have reported. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int lost;
static int64_t lost_tokens[64];

static void on_event(void *user, const zkl_event *event)
{
    (void)user;
    if (event->kind != ZKL_EVENT_LOCK || event->state != ZKL_LOCK_LOST) return;
    pthread_mutex_lock(&mutex);
    CHECK(lost < 64);
    lost_tokens[lost++] = event->token;
    pthread_mutex_unlock(&mutex);
}

static int losses(void)
{
    pthread_mutex_lock(&mutex);
    int count = lost;
    pthread_mutex_unlock(&mutex);
    return count;
}

static int losses_of(int64_t token)
{
    int count = 0;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < lost; i++) count += lost_tokens[i] == token;
    pthread_mutex_unlock(&mutex);
    return count;
}

/* A hold, and one of its nodes. */
struct hold {
    char path[64], node[256];
    int64_t token;
};

/* Deletes one node of each hold. The holder receives the events within a heartbeat, long before the sessions could end. */
static void take_away(const struct hold *holds, int count)
{
    int before = losses();
    int64_t start = now_ms();
    for (int i = 0; i < count; i++) CHECK(zoo_delete(admin, holds[i].node, -1) == ZOK);
    AWAIT(losses() == before + count);
    CHECK(now_ms() - start < SESSION_MS / 6 + slack_ms()); /* A heartbeat is a sixth of the session timeout. */
    for (int i = 0; i < count; i++) CHECK(losses_of(holds[i].token) == 1);
}

/* If an operator deletes one node of a hold, the whole hold becomes LOST: each kind of lock, all leases, or a multi-lock. */
static void each_kind_of_lock_is_lost(void)
{
    struct hold holds[6];
    zkl_lock *read, *write, *unused;
    zkl_hold *leases = NULL;
    size_t needed;
    for (int i = 0; i < 6; i++) snprintf(holds[i].path, sizeof holds[i].path, "%s", fresh_path());
    zkl_semaphore *semaphore = new_semaphore(client, holds[5].path, 3);
    zkl_lock *one = new_mutex(client, fresh_path()), *two = new_mutex(client, holds[4].path);
    OK(zkl_rwlock_new(client, holds[2].path, &read, &unused));
    zkl_lock_free(unused);
    OK(zkl_rwlock_new(client, holds[3].path, &unused, &write));
    zkl_lock_free(unused);
    zkl_lock *locks[] = {new_mutex(client, holds[0].path), new_semaphore_mutex(client, holds[1].path), read, write,
                         new_multi(one, two)};
    for (int i = 0; i < 5; i++) {
        OK(acquire_in_time(locks[i]));
        OK(zkl_fencing_token(locks[i], &holds[i].token));
        OK(zkl_lock_node_path(i == 4 ? two : locks[i], holds[i].node, sizeof holds[i].node, &needed));
    }
    OK(zkl_semaphore_acquire_timeout(semaphore, 3, 60000, &leases));
    OK(hold_token(leases, &holds[5].token));
    OK(zkl_hold_node_path(leases, 1, holds[5].node, sizeof holds[5].node, &needed));
    take_away(holds, 6);
    for (int i = 0; i < 5; i++) {
        int64_t token;
        CHECK(zkl_lock_state(locks[i]) == ZKL_LOCK_LOST && zkl_is_held(locks[i]) == 0);
        CHECK(is_valid(other, holds[i].path, holds[i].token) == 0);
        EXPECT(ZKL_E_LOST, zkl_fencing_token(locks[i], &token));
        CHECK(i != 4 || zkl_lock_state(one) == ZKL_LOCK_HELD);
        EXPECT(ZKL_E_LOST, zkl_release(locks[i]));
        EXPECT_MESSAGE("deleted");
        OK(acquire_and_release(locks[i]));
        zkl_lock_free(locks[i]);
    }
    zkl_lock_free(one);
    zkl_lock_free(two);
    CHECK(zkl_hold_is_held(leases) == 0 && hold_state(leases) == ZKL_LOCK_LOST);
    EXPECT(ZKL_E_LOST, zkl_hold_release(leases));
    zkl_semaphore_free(semaphore);
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
    OK(zkl_config_set_session_timeout_ms(config, SESSION_MS));
    OK(zkl_config_set_event_callback(config, on_event, NULL, NULL));
    OK(zkl_client_new(servers, config, &client));
    zkl_config_free(config);
    other = new_client();
    RUN(each_kind_of_lock_is_lost);
    RUN(waiter_rejoins_after_its_node_is_deleted);
    zkl_client_free(client);
    zkl_client_free(other);
    CHECK(zookeeper_close(admin) == ZOK);
    return 0;
}
