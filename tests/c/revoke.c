/* Revocation: who is asked to give up hears of it, and what a callback owns is dropped once, after its last call. */
#include "check.h"

static zkl_client *client, *other;

/* What a callback owns. */
struct asked {
    pthread_mutex_t mutex;
    int calls, drops, late;
    void *handle;
    void (*also)(struct asked *);
};

static struct asked nobody(void)
{
    return (struct asked){.mutex = PTHREAD_MUTEX_INITIALIZER};
}

static void hear_handle(struct asked *asked, void *handle)
{
    pthread_mutex_lock(&asked->mutex);
    asked->calls++;
    asked->late += asked->drops;
    asked->handle = handle;
    pthread_mutex_unlock(&asked->mutex);
    if (asked->also != NULL) asked->also(asked);
}

static void hear(void *user, zkl_lock *lock)
{
    hear_handle(user, lock);
}

static void hear_semaphore(void *user, zkl_semaphore *semaphore)
{
    hear_handle(user, semaphore);
}

static void dropped(void *user)
{
    struct asked *asked = user;
    pthread_mutex_lock(&asked->mutex);
    asked->drops++;
    pthread_mutex_unlock(&asked->mutex);
}

static int calls(struct asked *asked)
{
    pthread_mutex_lock(&asked->mutex);
    int count = asked->calls;
    pthread_mutex_unlock(&asked->mutex);
    return count;
}

static int drops(struct asked *asked)
{
    pthread_mutex_lock(&asked->mutex);
    int count = asked->drops;
    CHECK(count <= 1 && asked->late == 0);
    pthread_mutex_unlock(&asked->mutex);
    return count;
}

static void revoke_by(zkl_lock *lock)
{
    char node[256];
    size_t needed;
    OK(zkl_lock_node_path(lock, node, sizeof node, &needed));
    OK(zkl_revoke(other, node));
}

/* The last node in a queue. */
static void keep_last(void *user, const zkl_participant *participant)
{
    snprintf(user, 256, "%s", participant->node_path);
}

static void a_holder_hears_that_somebody_wants_the_lock(void)
{
    const char *path = fresh_path();
    zkl_lock *lock = new_mutex(client, path), *wanted = new_mutex(other, path);
    struct asked asked = nobody();
    OK(zkl_set_revocable(lock, hear, &asked, dropped));
    OK(zkl_acquire(lock));
    char holder[256] = "";
    OK(zkl_participants(wanted, keep_last, holder));
    OK(zkl_revoke(other, holder));
    AWAIT(calls(&asked) == 1);
    CHECK(asked.handle == lock);
    /* It is a request. */
    CHECK(zkl_is_held(lock) == 1);
    EXPECT(ZKL_E_TIMEOUT, look_once(wanted));
    OK(zkl_release(lock));
    OK(take_turn(wanted));

    /* The next hold, too; and who is gone has given up. */
    OK(zkl_acquire(lock));
    revoke_by(lock);
    AWAIT(calls(&asked) == 2);
    OK(zkl_release(lock));
    OK(zkl_revoke(other, holder));
    CHECK(drops(&asked) == 0);
    zkl_lock_free(lock);
    AWAIT(drops(&asked) == 1);
    zkl_lock_free(wanted);
}

static void those_who_hold_already_or_wait_are_asked_as_well(void)
{
    const char *path = fresh_path();
    zkl_lock *lock = new_mutex(client, path), *blocker = new_mutex(other, path);
    struct asked asked = nobody();
    struct call waiting;
    char last[256] = "";
    OK(zkl_acquire(lock));
    OK(zkl_set_revocable(lock, hear, &asked, dropped));
    revoke_by(lock);
    AWAIT(calls(&asked) == 1);
    OK(zkl_release(lock));

    OK(zkl_acquire(blocker));
    start_call(&waiting, zkl_acquire, lock);
    await_participants(blocker, 2);
    OK(zkl_participants(blocker, keep_last, last));
    OK(zkl_revoke(other, last));
    AWAIT(calls(&asked) == 2);
    OK(zkl_cancel(lock));
    CHECK(end_call(&waiting) == ZKL_E_CANCELED);
    OK(zkl_release(blocker));
    zkl_lock_free(lock);
    AWAIT(drops(&asked) == 1);
    zkl_lock_free(blocker);
}

static void another_callback_takes_its_place(void)
{
    zkl_lock *lock = new_mutex(client, fresh_path());
    struct asked one = nobody(), two = nobody(), none = nobody(), three = nobody();
    OK(zkl_acquire(lock));
    OK(zkl_set_revocable(lock, hear, &one, dropped));
    OK(zkl_set_revocable(lock, hear, &two, dropped));
    CHECK(drops(&one) == 1 && drops(&two) == 0);
    revoke_by(lock);
    AWAIT(calls(&two) == 1);
    CHECK(calls(&one) == 0);
    /* None: its user is not needed, and that of the one before is not needed any more. */
    OK(zkl_set_revocable(lock, NULL, &none, dropped));
    CHECK(drops(&none) == 1);
    AWAIT(drops(&two) == 1);
    OK(zkl_set_revocable(lock, NULL, NULL, NULL));
    revoke_by(lock);
    OK(zkl_set_revocable(lock, hear, &three, dropped));
    revoke_by(lock);
    AWAIT(calls(&three) >= 1);
    CHECK(calls(&two) == 1 && calls(&none) == 0);
    OK(zkl_set_revocable(lock, NULL, NULL, NULL));
    AWAIT(drops(&three) == 1);
    zkl_lock_free(lock);
    CHECK(drops(&one) == 1 && drops(&two) == 1 && drops(&none) == 1);
}

/* What is not taken stays with the program, as with zkl_config_set_event_callback. */
static void a_call_that_fails_takes_nothing(void)
{
    zkl_client *doomed = new_client();
    zkl_lock *freed = new_mutex(client, fresh_path()), *closed = new_mutex(doomed, fresh_path());
    zkl_lock *live = new_mutex(client, fresh_path()), *member = new_mutex(client, fresh_path()), *both = new_multi(live, member);
    zkl_semaphore *semaphore = new_semaphore(doomed, fresh_path(), 1);
    struct asked kept = nobody(), of_live = nobody();
    zkl_lock_free(freed);
    zkl_client_free(doomed);
    OK(zkl_set_revocable(live, hear, &of_live, dropped));
    EXPECT(ZKL_E_HANDLE, zkl_set_revocable(NULL, hear, &kept, dropped));
    EXPECT(ZKL_E_HANDLE, zkl_set_revocable(NULL, NULL, &kept, dropped));
    EXPECT(ZKL_E_HANDLE, zkl_set_revocable(freed, hear, &kept, dropped));
    EXPECT(ZKL_E_HANDLE, zkl_set_revocable((zkl_lock *)(void *)client, hear, &kept, dropped));
    EXPECT(ZKL_E_CLOSED, zkl_set_revocable(closed, hear, &kept, dropped));
    EXPECT(ZKL_E_CLOSED, zkl_set_revocable(closed, NULL, &kept, dropped));
    EXPECT(ZKL_E_CLOSED, zkl_semaphore_set_revocable(semaphore, hear_semaphore, &kept, dropped));
    EXPECT(ZKL_E_HANDLE, zkl_semaphore_set_revocable(NULL, hear_semaphore, &kept, dropped));
    /* Of a multi-lock, all or none. */
    zkl_lock_free(member);
    EXPECT(ZKL_E_CLOSED, zkl_set_revocable(both, hear, &kept, dropped));
    CHECK(drops(&kept) == 0 && drops(&of_live) == 0);
    OK(zkl_acquire(live));
    revoke_by(live);
    AWAIT(calls(&of_live) == 1);
    OK(zkl_set_revocable(live, hear, &kept, dropped));
    AWAIT(drops(&of_live) == 1);
    CHECK(drops(&kept) == 0);
    zkl_lock_free(live);
    zkl_lock_free(both);
    zkl_lock_free(closed);
    zkl_semaphore_free(semaphore);
    AWAIT(drops(&kept) == 1);
    CHECK(calls(&kept) == 0);
}

static void a_freed_client_drops_what_its_locks_have(void)
{
    zkl_client *doomed = new_client();
    zkl_lock *one = new_mutex(doomed, fresh_path()), *two = new_semaphore_mutex(doomed, fresh_path());
    zkl_semaphore *semaphore = new_semaphore(doomed, fresh_path(), 1);
    struct asked all[3] = {nobody(), nobody(), nobody()};
    OK(zkl_set_revocable(one, hear, &all[0], dropped));
    OK(zkl_set_revocable(two, hear, &all[1], dropped));
    OK(zkl_semaphore_set_revocable(semaphore, hear_semaphore, &all[2], dropped));
    OK(zkl_acquire(one));
    revoke_by(one);
    zkl_client_free(doomed);
    /* zkl_client_free returns after the last call. */
    for (int i = 0; i < 3; i++) CHECK(drops(&all[i]) == 1);
    zkl_lock_free(one);
    zkl_lock_free(two);
    zkl_semaphore_free(semaphore);
    for (int i = 0; i < 3; i++) CHECK(drops(&all[i]) == 1);
}

static void a_multi_lock_is_named_by_its_own_handle(void)
{
    zkl_lock *one = new_mutex(client, fresh_path()), *two = new_semaphore_mutex(client, fresh_path()), *both = new_multi(one, two);
    struct asked of_one = nobody(), of_both = nobody(), again = nobody();
    OK(zkl_set_revocable(one, hear, &of_one, dropped));
    OK(zkl_set_revocable(both, hear, &of_both, dropped));
    /* In the place of its own. */
    AWAIT(drops(&of_one) == 1);
    OK(zkl_acquire(both));
    revoke_by(one);
    AWAIT(calls(&of_both) == 1);
    revoke_by(two);
    AWAIT(calls(&of_both) == 2);
    CHECK(of_both.handle == both && calls(&of_one) == 0);

    OK(zkl_set_revocable(one, hear, &again, dropped));
    revoke_by(one);
    AWAIT(calls(&again) == 1);
    CHECK(again.handle == one && calls(&of_both) == 2 && drops(&of_both) == 0);
    zkl_lock_free(both);
    AWAIT(drops(&of_both) == 1);
    revoke_by(two);
    revoke_by(one);
    AWAIT(calls(&again) == 2);
    CHECK(calls(&of_both) == 2);
    zkl_lock_free(one);
    zkl_lock_free(two);
    AWAIT(drops(&again) == 1);

    /* Its locks are freed first. */
    one = new_mutex(client, fresh_path());
    two = new_mutex(other, fresh_path());
    both = new_multi(one, two);
    of_both = nobody();
    OK(zkl_set_revocable(both, hear, &of_both, dropped));
    zkl_lock_free(one);
    CHECK(drops(&of_both) == 0);
    zkl_lock_free(two);
    AWAIT(drops(&of_both) == 1);
    zkl_lock_free(both);
}

static void leases_are_asked_back_by_their_semaphore(void)
{
    zkl_semaphore *semaphore = new_semaphore(client, fresh_path(), 2);
    zkl_leases *two = NULL;
    struct asked asked = nobody(), next = nobody();
    char node[256];
    size_t needed;
    OK(zkl_semaphore_set_revocable(semaphore, hear_semaphore, &asked, dropped));
    OK(zkl_semaphore_acquire_timeout(semaphore, 2, 20000, &two));
    for (size_t i = 0; i < 2; i++) {
        OK(zkl_leases_node_path(two, i, node, sizeof node, &needed));
        OK(zkl_revoke(other, node));
        AWAIT(calls(&asked) == 1 + (int)i);
    }
    CHECK(asked.handle == semaphore);
    CHECK(zkl_leases_is_held(two) == 1);
    OK(zkl_semaphore_set_revocable(semaphore, hear_semaphore, &next, dropped));
    AWAIT(drops(&asked) == 1);
    zkl_semaphore_free(semaphore);
    AWAIT(drops(&next) == 1);
    OK(zkl_revoke(other, node));
    OK(zkl_leases_release(two));
    CHECK(calls(&next) == 0);
}

static void release_and_free(struct asked *asked)
{
    zkl_lock *lock = asked->handle;
    struct asked *same = asked;
    /* Any thread may release a semaphore mutex; a callback may do anything else, too. */
    OK(zkl_release(lock));
    OK(zkl_set_revocable(lock, hear, same, NULL));
    zkl_lock_free(lock);
    CHECK(drops(asked) == 0);
}

static void a_callback_may_free_its_lock(void)
{
    char path[64];
    strcpy(path, fresh_path());
    zkl_lock *lock = new_semaphore_mutex(client, path), *wanted = new_semaphore_mutex(other, path);
    struct asked asked = nobody();
    asked.also = release_and_free;
    OK(zkl_set_revocable(lock, hear, &asked, dropped));
    OK(zkl_acquire(lock));
    revoke_by(lock);
    OK(acquire_in_time(wanted));
    AWAIT(drops(&asked) == 1);
    EXPECT(ZKL_E_HANDLE, zkl_acquire(lock));
    OK(zkl_release(wanted));
    zkl_lock_free(wanted);
}

static zkl_lock *dropping;
static int dropped_inside;

static void drop_and_call(void *user)
{
    (void)user;
    /* No lock of the library is held meanwhile. */
    CHECK(zkl_lock_state(dropping) >= ZKL_LOCK_FREE);
    OK(zkl_set_revocable(dropping, NULL, NULL, NULL));
    CHECK(participants(dropping) == 0);
    dropped_inside++;
}

static void what_drops_may_call_anything(void)
{
    dropping = new_mutex(client, fresh_path());
    for (int i = 1; i < 4; i++) {
        OK(zkl_set_revocable(dropping, hear, &dropped_inside, drop_and_call));
        OK(zkl_set_revocable(dropping, hear, NULL, NULL));
        CHECK(dropped_inside == 2 * i - 1);
        OK(zkl_set_revocable(dropping, NULL, &dropped_inside, drop_and_call));
        CHECK(dropped_inside == 2 * i);
    }
    zkl_lock_free(dropping);
}

static int living;

static void hear_on_the_heap(void *user, zkl_lock *lock)
{
    CHECK(*(int *)user == 42);
    CHECK(lock != NULL);
}

static void free_on_the_heap(void *user)
{
    CHECK(*(int *)user == 42);
    free(user);
    __atomic_sub_fetch(&living, 1, __ATOMIC_SEQ_CST);
}

struct shared {
    zkl_lock *locks[3];
    int stop;
};

static void *keep_setting(void *argument)
{
    struct shared *shared = argument;
    for (int round = 0; !__atomic_load_n(&shared->stop, __ATOMIC_SEQ_CST); round++) {
        int *user = malloc(sizeof *user);
        *user = 42;
        __atomic_add_fetch(&living, 1, __ATOMIC_SEQ_CST);
        zkl_lock *lock = __atomic_load_n(&shared->locks[round % 3], __ATOMIC_SEQ_CST);
        zkl_status status = zkl_set_revocable(lock, round % 7 == 0 ? NULL : hear_on_the_heap, user, free_on_the_heap);
        CHECK(status == ZKL_OK || status == ZKL_E_HANDLE || status == ZKL_E_CLOSED);
        if (status != ZKL_OK) free_on_the_heap(user);
        /* Each call asks the server how the nodes stand. */
        sleep_ms(1);
    }
    return NULL;
}

static void threads_set_and_free_at_once(void)
{
    struct shared shared = {{NULL}, 0};
    pthread_t threads[2];
    zkl_client *own = new_client();
    char path[64], two_path[64];
    strcpy(path, fresh_path());
    strcpy(two_path, fresh_path());
    for (int round = 0; round < 12; round++) {
        zkl_lock *one = new_mutex(own, path), *two = new_semaphore_mutex(own, two_path), *both = new_multi(one, two);
        zkl_lock *before[3];
        zkl_lock *now[3] = {one, two, both};
        for (int i = 0; i < 3; i++) {
            before[i] = shared.locks[i];
            __atomic_store_n(&shared.locks[i], now[i], __ATOMIC_SEQ_CST);
        }
        if (round == 0) {
            for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, keep_setting, &shared) == 0);
        }
        for (int i = 0; i < 3; i++) zkl_lock_free(before[(i + round) % 3]);
        OK(acquire_in_time(both));
        revoke_by(one);
        revoke_by(two);
        OK(zkl_release(both));
    }
    zkl_client_free(own);
    __atomic_store_n(&shared.stop, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < 3; i++) zkl_lock_free(shared.locks[i]);
    AWAIT(__atomic_load_n(&living, __ATOMIC_SEQ_CST) == 0);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    client = new_client();
    other = new_client();
    RUN(a_holder_hears_that_somebody_wants_the_lock);
    RUN(those_who_hold_already_or_wait_are_asked_as_well);
    RUN(another_callback_takes_its_place);
    RUN(a_call_that_fails_takes_nothing);
    RUN(a_freed_client_drops_what_its_locks_have);
    RUN(a_multi_lock_is_named_by_its_own_handle);
    RUN(leases_are_asked_back_by_their_semaphore);
    RUN(a_callback_may_free_its_lock);
    RUN(what_drops_may_call_anything);
    RUN(threads_set_and_free_at_once);
    zkl_client_free(other);
    zkl_client_free(client);
    return 0;
}
