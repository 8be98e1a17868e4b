/* The read/write lock, used from C. */
#include "check.h"

static zkl_client *client, *other;

struct halves {
    zkl_lock *read, *write;
};

static struct halves new_rwlock(zkl_client *of, const char *path)
{
    struct halves both = {NULL, NULL};
    OK(zkl_rwlock_new(of, path, &both.read, &both.write));
    CHECK(both.read != NULL && both.write != NULL && both.read != both.write);
    return both;
}

static void free_both(struct halves both)
{
    zkl_lock_free(both.read);
    zkl_lock_free(both.write);
}

/* Several readers can hold the lock at the same time, and a writer excludes all others. */
static void readers_share_the_lock_and_writers_do_not(void)
{
    const char *path = fresh_path();
    struct halves ours = new_rwlock(client, path), theirs = new_rwlock(other, path);
    struct holder reader;
    struct call writer;
    OK(zkl_acquire(ours.read));
    start_holder(&reader, ours.read);
    CHECK(on_new_thread(try_acquire_and_release, theirs.read) == ZKL_OK);
    CHECK(on_new_thread(try_acquire_and_release, theirs.write) == ZKL_E_TIMEOUT);
    CHECK(on_new_thread(try_acquire_and_release, ours.write) == ZKL_E_TIMEOUT);

    start_call(&writer, acquire_in_time, theirs.write);
    AWAIT(queue_length(ours.read) == 3);
    OK(zkl_release(ours.read));
    CHECK(zkl_is_held_in_process(theirs.write) == 0);
    end_holder(&reader);
    CHECK(end_call(&writer) == ZKL_OK);
    CHECK(zkl_is_held_in_process(theirs.write) == 1);
    EXPECT(ZKL_E_TIMEOUT, try_acquire(ours.read));
    EXPECT(ZKL_E_TIMEOUT, try_acquire(ours.write));
    free_both(theirs); /* The handle also releases the hold of a thread that has ended. */
    OK(acquire_in_time(ours.write));
    OK(zkl_release(ours.write));
    free_both(ours);
}

/* The holder of the write lock can acquire the read lock and keep it after releasing the write lock. */
static void a_writer_may_read_and_go_on_reading(void)
{
    const char *path = fresh_path();
    struct halves ours = new_rwlock(client, path), theirs = new_rwlock(other, path);
    int64_t written = 0, read = 0;
    OK(zkl_acquire(ours.write));
    OK(zkl_acquire(ours.write));
    OK(zkl_acquire_timeout(ours.read, 0));
    OK(zkl_acquire(ours.read));
    CHECK(zkl_is_held(ours.read) == 1 && zkl_is_held(ours.write) == 1);
    OK(zkl_fencing_token(ours.write, &written));
    OK(zkl_fencing_token(ours.read, &read));
    CHECK(read > written);
    CHECK(on_new_thread(try_acquire_and_release, ours.read) == ZKL_E_TIMEOUT);

    OK(zkl_release(ours.write));
    OK(zkl_release(ours.write));
    CHECK(zkl_is_held(ours.read) == 1 && zkl_is_held(ours.write) == 0);
    CHECK(zkl_lock_state(ours.write) == ZKL_LOCK_FREE);
    OK(try_acquire_and_release(theirs.read));
    EXPECT(ZKL_E_TIMEOUT, try_acquire(theirs.write));
    OK(zkl_release(ours.read));
    OK(zkl_release(ours.read));
    EXPECT(ZKL_E_NOT_OWNER, zkl_release(ours.read));
    EXPECT(ZKL_E_NOT_OWNER, zkl_release(ours.write));
    OK(try_acquire_and_release(theirs.write));
    free_both(ours);
    free_both(theirs);
}

/* If a thread holds the read lock, its acquire of the write lock fails with DEADLOCK. */
static void a_reader_may_not_write(void)
{
    const char *path = fresh_path();
    struct halves ours = new_rwlock(client, path);
    OK(zkl_acquire(ours.read));
    EXPECT(ZKL_E_DEADLOCK, zkl_acquire(ours.write));
    EXPECT_MESSAGE(path);
    EXPECT_MESSAGE("read lock");
    EXPECT(ZKL_E_DEADLOCK, zkl_acquire_timeout(ours.write, 0));
    CHECK(queue_length(ours.write) == 1);
    CHECK(zkl_is_held(ours.read) == 1 && zkl_is_held(ours.write) == 0);
    /* Another thread that has no read lock may wait. */
    CHECK(on_new_thread(try_acquire_and_release, ours.write) == ZKL_E_TIMEOUT);
    OK(zkl_release(ours.read));
    OK(zkl_acquire(ours.write));
    OK(zkl_release(ours.write));
    free_both(ours);
}

struct line {
    int count;
    struct {
        int holds;
        int64_t czxid;
        char path[128];
    } all[4];
};

static void note(void *user, const zkl_participant *participant)
{
    struct line *line = user;
    CHECK(line->count < 4);
    line->all[line->count].holds = participant->holds;
    line->all[line->count].czxid = participant->czxid;
    snprintf(line->all[line->count++].path, 128, "%s", participant->node_path);
}

/* zkl_participants lists the nodes of one lock, and zkl_queue lists the nodes of both. */
static void participants_are_per_lock_and_queue_covers_both(void)
{
    const char *path = fresh_path();
    struct halves ours = new_rwlock(client, path), theirs = new_rwlock(other, path);
    struct call writer;
    char node[128];
    size_t needed = 0;
    int64_t token = 0;
    OK(zkl_acquire(ours.read));
    start_call(&writer, acquire_in_time, theirs.write);
    AWAIT(queue_length(ours.read) == 2);
    CHECK(participants(ours.read) == 1 && participants(theirs.read) == 1);
    CHECK(participants(ours.write) == 1 && participants(theirs.write) == 1);
    struct line line = {0}, same = {0};
    OK(zkl_queue(ours.read, note, &line));
    OK(zkl_queue(theirs.write, note, &same));
    CHECK(line.count == 2 && same.count == 2 && memcmp(&line, &same, sizeof line) == 0);
    CHECK(line.all[0].holds == 1 && strstr(line.all[0].path, "__READ__") != NULL);
    CHECK(line.all[1].holds == 0 && strstr(line.all[1].path, "__WRIT__") != NULL);
    OK(zkl_fencing_token(ours.read, &token));
    CHECK(line.all[0].czxid == token);
    OK(zkl_lock_node_path(ours.read, node, sizeof node, &needed));
    CHECK(strcmp(node, line.all[0].path) == 0 && needed == strlen(node) + 1);
    OK(zkl_release(ours.read));
    CHECK(end_call(&writer) == ZKL_OK);
    free_both(ours);
    free_both(theirs);
}

/* The read lock and the write lock are cancelled and freed separately. */
static void read_and_write_lock_are_cancelled_and_freed_separately(void)
{
    const char *path = fresh_path();
    struct halves ours = new_rwlock(client, path), theirs = new_rwlock(other, path);
    struct call reading, writing;
    OK(zkl_acquire(theirs.write));
    start_call(&reading, zkl_acquire, ours.read);
    start_call(&writing, zkl_acquire, ours.write);
    AWAIT(queue_length(ours.read) == 3);
    OK(zkl_cancel(ours.read));
    CHECK(end_call(&reading) == ZKL_E_CANCELED);
    start_call(&reading, acquire_in_time, ours.read);
    AWAIT(queue_length(ours.read) == 3);
    zkl_lock_free(ours.write);
    CHECK(end_call(&writing) == ZKL_E_CLOSED);
    OK(zkl_release(theirs.write));
    CHECK(end_call(&reading) == ZKL_OK);
    EXPECT(ZKL_E_HANDLE, zkl_acquire(ours.write));
    CHECK(zkl_is_held_in_process(ours.read) == 1);
    zkl_lock_free(ours.read);
    OK(acquire_and_release(theirs.write));
    free_both(theirs);
}

/* If zkl_rwlock_new fails, it writes neither handle. */
static void failed_rwlock_new_writes_no_handle(void)
{
    zkl_lock *read = (zkl_lock *)&read, *write = (zkl_lock *)&write;
    EXPECT(ZKL_E_INVALID, zkl_rwlock_new(client, "/a", &read, NULL));
    EXPECT_MESSAGE("write_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_rwlock_new(client, "/a", NULL, &write));
    EXPECT_MESSAGE("read_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_rwlock_new(client, "/a", &read, &read));
    EXPECT_MESSAGE("the same");
    EXPECT(ZKL_E_INVALID, zkl_rwlock_new(client, "a", &read, &write));
    zkl_client *closed = new_client();
    zkl_client_free(closed);
    EXPECT(ZKL_E_HANDLE, zkl_rwlock_new(closed, "/a", &read, &write));
    CHECK(read == (zkl_lock *)&read && write == (zkl_lock *)&write);
}

struct ledger {
    struct halves lock;
    int readers, writers, total;
};

static void *read_and_write(void *argument)
{
    struct ledger *ledger = argument;
    for (int round = 0; round < 12; round++) {
        int writes = round % 3 == 0;
        zkl_lock *half = writes ? ledger->lock.write : ledger->lock.read;
        OK(acquire_in_time(half));
        if (writes) {
            CHECK(__atomic_fetch_add(&ledger->writers, 1, __ATOMIC_SEQ_CST) == 0);
            CHECK(__atomic_load_n(&ledger->readers, __ATOMIC_SEQ_CST) == 0);
            ledger->total++;
            __atomic_fetch_sub(&ledger->writers, 1, __ATOMIC_SEQ_CST);
        } else {
            __atomic_fetch_add(&ledger->readers, 1, __ATOMIC_SEQ_CST);
            CHECK(__atomic_load_n(&ledger->writers, __ATOMIC_SEQ_CST) == 0);
            __atomic_fetch_sub(&ledger->readers, 1, __ATOMIC_SEQ_CST);
        }
        OK(round % 2 == 0 ? zkl_release(half) : zkl_release_nowait(half));
    }
    return NULL;
}

/* Threads that read and write under the locks never see a half-finished change. */
static void threads_exclude_each_other(void)
{
    struct ledger ledger = {new_rwlock(client, fresh_path()), 0, 0, 0};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, read_and_write, &ledger) == 0);
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(ledger.total == 16);
    CHECK(queue_length(ledger.lock.read) == 0);
    free_both(ledger.lock);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    client = new_client();
    other = new_client();
    RUN(readers_share_the_lock_and_writers_do_not);
    RUN(a_writer_may_read_and_go_on_reading);
    RUN(a_reader_may_not_write);
    RUN(participants_are_per_lock_and_queue_covers_both);
    RUN(read_and_write_lock_are_cancelled_and_freed_separately);
    RUN(failed_rwlock_new_writes_no_handle);
    RUN(threads_exclude_each_other);
    zkl_client_free(other);
    zkl_client_free(client);
    return 0;
}
