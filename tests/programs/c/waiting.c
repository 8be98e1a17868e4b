/* The report about pending calls in this process. */
#include "check.h"

static zkl_client *client, *other;

/* A copy of the reported data. */
struct told {
    int count;
    zkl_wait last;
    char node_path[256], ahead[256];
};

static void note(void *user, const zkl_wait *wait)
{
    struct told *told = user;
    CHECK(wait->size == sizeof *wait);
    told->count++;
    told->last = *wait;
    snprintf(told->node_path, sizeof told->node_path, "%s", wait->node_path == NULL ? "" : wait->node_path);
    snprintf(told->ahead, sizeof told->ahead, "%s", wait->ahead == NULL ? "" : wait->ahead);
}

static struct told waiting(zkl_lock *lock)
{
    struct told told;
    memset(&told, 0, sizeof told);
    OK(zkl_waiting(lock, note, &told));
    return told;
}

static struct told waiting_for_leases(zkl_semaphore *semaphore)
{
    struct told told;
    memset(&told, 0, sizeof told);
    OK(zkl_semaphore_waiting(semaphore, note, &told));
    return told;
}

/* The data and the session of one node in the list of participants. */
struct owner {
    const char *node_path;
    char data[64];
    int64_t session_id;
    int found;
};

static void find_owner(void *user, const zkl_participant *participant)
{
    struct owner *owner = user;
    if (strcmp(participant->node_path, owner->node_path) != 0) return;
    owner->found++;
    owner->session_id = participant->session_id;
    snprintf(owner->data, sizeof owner->data, "%s", (const char *)participant->data);
}

/* The report about a pending acquire names the node ahead. */
static void a_waiter_names_the_node_ahead(void)
{
    const char *path = fresh_path();
    zkl_lock *held = new_mutex(client, path), *wanted = new_mutex(other, path);
    struct call call;
    struct told told;
    OK(zkl_lock_set_data(held, "host-a", 6));
    CHECK(waiting(wanted).count == 0);
    OK(zkl_acquire(held));
    start_call(&call, acquire_in_time, wanted);
    AWAIT((told = waiting(wanted)).last.session_id != 0);
    CHECK(told.count == 1 && told.last.waits_for == ZKL_WAITS_FOR_NODE && told.last.count == 1);
    CHECK(told.last.left_ms >= 0 && told.last.left_ms < 60000 && told.last.waited_ms >= 0);
    char node[256];
    size_t needed;
    OK(zkl_lock_node_path(held, node, sizeof node, &needed));
    CHECK(strcmp(told.ahead, node) == 0);

    struct owner owner = {told.ahead, "", 0, 0};
    OK(zkl_participants(wanted, find_owner, &owner));
    CHECK(owner.found == 1 && strcmp(owner.data, "host-a") == 0);
    CHECK(owner.session_id == told.last.session_id && owner.session_id == zkl_client_session_id(client));
    owner = (struct owner){told.node_path, "", 0, 0};
    OK(zkl_participants(wanted, find_owner, &owner));
    CHECK(owner.found == 1 && owner.session_id == zkl_client_session_id(other));

    OK(zkl_release(held));
    CHECK(end_call(&call) == ZKL_OK);
    CHECK(waiting(wanted).count == 0);
    zkl_lock_free(held);
    zkl_lock_free(wanted);
}

static zkl_status acquire_for_a_moment(zkl_lock *lock)
{
    return zkl_acquire_timeout(lock, 2000);
}

/* The message of a TIMEOUT names the holder. */
static void timeout_message_names_the_holder(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    struct call call;
    char node[256], says[300];
    size_t needed;
    OK(zkl_acquire(lock));
    OK(zkl_lock_node_path(lock, node, sizeof node, &needed));
    start_call(&call, acquire_for_a_moment, lock);
    CHECK(end_call(&call) == ZKL_E_TIMEOUT);
    snprintf(says, sizeof says, "held by %s (session 0x%" PRIx64, node, (uint64_t)zkl_client_session_id(client));
    CHECK(strstr(call.message, says) != NULL);
    start_call(&call, try_acquire, lock);
    CHECK(end_call(&call) == ZKL_E_TIMEOUT && strstr(call.message, node) != NULL);
    OK(zkl_release(lock));
    zkl_lock_free(lock);
}

/* Without a time limit, the report contains no remaining time. */
static void waiting_reports_no_deadline_without_timeout(void)
{
    zkl_lock *lock = new_semaphore_mutex(client, fresh_path());
    struct call call;
    struct told told;
    OK(zkl_acquire(lock));
    start_call(&call, zkl_acquire, lock);
    AWAIT((told = waiting(lock)).last.waits_for == ZKL_WAITS_FOR_LEASES);
    CHECK(told.last.left_ms == -1 && told.last.count == 1);
    CHECK(strstr(told.ahead, "/leases") != NULL);
    OK(zkl_cancel(lock));
    CHECK(end_call(&call) == ZKL_E_CANCELED);
    OK(zkl_release(lock));
    zkl_lock_free(lock);
}

static zkl_semaphore *semaphore;

static void *want_leases(void *argument)
{
    zkl_hold *leases = NULL;
    OK(zkl_semaphore_acquire_timeout(semaphore, *(int *)argument, 60000, &leases));
    OK(zkl_hold_release(leases));
    return NULL;
}

/* The report about a semaphore shows whether the acquire waits for leases or for its count. */
static void waiting_reports_leases_and_counts(void)
{
    char count_path[64];
    snprintf(count_path, sizeof count_path, "%s", fresh_path());
    OK(zkl_semaphore_new_counted(client, fresh_path(), count_path, 2, &semaphore));
    zkl_hold *leases = NULL;
    pthread_t thread;
    struct told told;
    int wanted = 3;
    OK(zkl_semaphore_acquire_timeout(semaphore, 2, 60000, &leases));
    CHECK(pthread_create(&thread, NULL, want_leases, &wanted) == 0);
    AWAIT((told = waiting_for_leases(semaphore)).last.waits_for == ZKL_WAITS_FOR_COUNT);
    CHECK(told.last.count == 1 && strcmp(told.ahead, count_path) == 0 && told.last.node_path == NULL);
    OK(zkl_shared_count_set(client, count_path, 3));
    AWAIT((told = waiting_for_leases(semaphore)).last.waits_for == ZKL_WAITS_FOR_LEASES);
    CHECK(told.count == 1 && told.last.count == 2);
    OK(zkl_hold_release(leases));
    CHECK(pthread_join(thread, NULL) == 0);
    zkl_semaphore_free(semaphore);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    client = new_client();
    other = new_client();
    RUN(a_waiter_names_the_node_ahead);
    RUN(timeout_message_names_the_holder);
    RUN(waiting_reports_no_deadline_without_timeout);
    RUN(waiting_reports_leases_and_counts);
    zkl_client_free(client);
    zkl_client_free(other);
    return 0;
}
