/* The read/write lock, as a C program sees it. */
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

static void readers_share_it_and_writers_do_not(void)
{
    const char *path = fresh_path();
    struct halves ours = new_rwlock(client, path), theirs = new_rwlock(other, path);
    struct holder reader;
    struct call writer;
    OK(zkl_acquire(ours.read));
    start_holder(&reader, ours.read);
    CHECK(elsewhere(look_and_release, theirs.read) == ZKL_OK);
    CHECK(elsewhere(look_and_release, theirs.write) == ZKL_E_TIMEOUT);
    CHECK(elsewhere(look_and_release, ours.write) == ZKL_E_TIMEOUT);

    start_call(&writer, acquire_in_time, theirs.write);
    AWAIT(queue_length(ours.read) == 3);
    OK(zkl_release(ours.read));
    CHECK(zkl_is_held_in_process(theirs.write) == 0);
    end_holder(&reader);
    CHECK(end_call(&writer) == ZKL_OK);
    CHECK(zkl_is_held_in_process(theirs.write) == 1);
    EXPECT(ZKL_E_TIMEOUT, look_once(ours.read));
    EXPECT(ZKL_E_TIMEOUT, look_once(ours.write));
    free_both(theirs); /* What is held by it, by a thread that is gone, is released. */
    OK(acquire_in_time(ours.write));
    OK(zkl_release(ours.write));
    free_both(ours);
}

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
    CHECK(elsewhere(look_and_release, ours.read) == ZKL_E_TIMEOUT);

    OK(zkl_release(ours.write));
    OK(zkl_release(ours.write));
    CHECK(zkl_is_held(ours.read) == 1 && zkl_is_held(ours.write) == 0);
    CHECK(zkl_lock_state(ours.write) == ZKL_LOCK_FREE);
    OK(look_and_release(theirs.read));
    EXPECT(ZKL_E_TIMEOUT, look_once(theirs.write));
    OK(zkl_release(ours.read));
    OK(zkl_release(ours.read));
    EXPECT(ZKL_E_NOT_OWNER, zkl_release(ours.read));
    EXPECT(ZKL_E_NOT_OWNER, zkl_release(ours.write));
    OK(look_and_release(theirs.write));
    free_both(ours);
    free_both(theirs);
}

static void a_reader_may_not_write(void)
{
    const char *path = fresh_path();
    struct halves ours = new_rwlock(client, path);
    OK(zkl_acquire(ours.read));
    EXPECT(ZKL_E_DEADLOCK, zkl_acquire(ours.write));
    SAYS(path);
    SAYS("read lock");
    EXPECT(ZKL_E_DEADLOCK, zkl_acquire_timeout(ours.write, 0));
    CHECK(queue_length(ours.write) == 1);
    CHECK(zkl_is_held(ours.read) == 1 && zkl_is_held(ours.write) == 0);
    /* Another thread that does not read may wait. */
    CHECK(elsewhere(look_and_release, ours.write) == ZKL_E_TIMEOUT);
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

static void each_half_tells_of_its_own_and_the_queue_of_both(void)
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

static void halves_are_cancelled_and_freed_each_for_itself(void)
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
    OK(take_turn(theirs.write));
    free_both(theirs);
}

static void nothing_is_written_unless_both_are_made(void)
{
    zkl_lock *read = (zkl_lock *)&read, *write = (zkl_lock *)&write;
    EXPECT(ZKL_E_INVALID, zkl_rwlock_new(client, "/a", &read, NULL));
    SAYS("write_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_rwlock_new(client, "/a", NULL, &write));
    SAYS("read_out is NULL");
    EXPECT(ZKL_E_INVALID, zkl_rwlock_new(client, "/a", &read, &read));
    SAYS("the same");
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
    RUN(readers_share_it_and_writers_do_not);
    RUN(a_writer_may_read_and_go_on_reading);
    RUN(a_reader_may_not_write);
    RUN(each_half_tells_of_its_own_and_the_queue_of_both);
    RUN(halves_are_cancelled_and_freed_each_for_itself);
    RUN(nothing_is_written_unless_both_are_made);
    RUN(threads_exclude_each_other);
    zkl_client_free(other);
    zkl_client_free(client);
    return 0;
}
