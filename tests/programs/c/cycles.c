/* Acquires and releases a lock many times in several processes: cycles SERVERS PATH COUNT FILE. FILE initially contains 16
 * zero bytes. It has two numbers: the number of current holders, and the number of all holds. Only the lock protects the
 * second number.
 *
 * Each process acquires the lock COUNT times with a first client, and COUNT times with a second one. Neither client may leave
 * a thread or a descriptor behind. The process prints the number of bytes by which the second client has increased its
 * memory. */
#include "check.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>

struct shared {
    int64_t inside;
    volatile int64_t total;
};

static int entries(const char *directory)
{
    DIR *dir = opendir(directory);
    int count = 0;
    CHECK(dir != NULL);
    while (readdir(dir) != NULL) count++;
    closedir(dir);
    return count;
}

/* The resident memory of the process, without the pages of files, which grow when code runs for the first time. */
static long anonymous(void)
{
    FILE *statm = fopen("/proc/self/statm", "r");
    long pages, of_files;
    CHECK(statm != NULL && fscanf(statm, "%*d %ld %ld", &pages, &of_files) == 2);
    fclose(statm);
    return (pages - of_files) * sysconf(_SC_PAGESIZE);
}

static void one_cycle(zkl_lock *lock, struct shared *shared, int64_t *last_token)
{
    int64_t token;
    OK(zkl_acquire_timeout(lock, 60000));
    CHECK(__atomic_fetch_add(&shared->inside, 1, __ATOMIC_SEQ_CST) == 0);
    OK(zkl_fencing_token(lock, &token));
    CHECK(token > *last_token);
    *last_token = token;
    int64_t total = shared->total;
    if (total % 8 == 0) sleep_ms(1);
    shared->total = total + 1;
    CHECK(zkl_is_held(lock) == 1);
    CHECK(__atomic_fetch_sub(&shared->inside, 1, __ATOMIC_SEQ_CST) == 1);
    OK(total % 3 == 0 ? zkl_release_nowait(lock) : zkl_release(lock));
}

int main(int argc, char **argv)
{
    begin(argc, argv, 4);
    const char *path = argv[2];
    int count = atoi(argv[3]);
    int file = open(argv[4], O_RDWR);
    CHECK(file >= 0);
    struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    CHECK(shared != MAP_FAILED);

    int descriptors = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    long before = 0;
    for (int lifetime = 0; lifetime < 2; lifetime++) {
        zkl_client *client = new_client();
        zkl_lock *lock = new_mutex(client, path);
        int64_t last_token = 0;
        for (int cycle = 0; cycle < count; cycle++) one_cycle(lock, shared, &last_token);
        zkl_lock_free(lock);
        zkl_client_free(client);
        CHECK(entries("/proc/self/fd") == descriptors);
        /* The kernel lists a thread for a moment after it was joined. */
        for (int64_t deadline = now_ms() + 60000; entries("/proc/self/task") != threads; sleep_ms(1)) CHECK(now_ms() < deadline);
        if (lifetime == 0) before = anonymous();
    }
    printf("%ld\n", anonymous() - before);
    return 0;
}
