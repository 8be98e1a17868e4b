/* A program that loads the library at run time: dlopen SERVERS LIBRARY. It may unload the library at any time. The library
 * then remains in memory (-z nodelete), because its threads and its fork handlers must not lose their code. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <zklock.h>

#define CHECK(condition)                                                                                                       \
    do {                                                                                                                       \
        if (!(condition)) {                                                                                                    \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                                      \
            _exit(1);                                                                                                          \
        }                                                                                                                      \
    } while (0)

static const char *servers;

static struct {
    zkl_status (*client_new)(const char *, const zkl_config *, zkl_client **);
    int32_t (*client_state)(const zkl_client *);
    void (*client_free)(zkl_client *);
    zkl_status (*mutex_new)(zkl_client *, const char *, zkl_lock **);
    zkl_status (*acquire_timeout)(zkl_lock *, int64_t);
    int32_t (*is_held)(const zkl_lock *);
    void (*lock_free)(zkl_lock *);
} zkl;

static void *load(const char *library)
{
    void *loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    CHECK(loaded != NULL);
#define FIND(name) CHECK((*(void **)&zkl.name = dlsym(loaded, "zkl_" #name)) != NULL)
    FIND(client_new);
    FIND(client_state);
    FIND(client_free);
    FIND(mutex_new);
    FIND(acquire_timeout);
    FIND(is_held);
    FIND(lock_free);
    return loaded;
}

static int entries(const char *directory)
{
    DIR *dir = opendir(directory);
    int count = 0;
    CHECK(dir != NULL);
    while (readdir(dir) != NULL) count++;
    closedir(dir);
    return count;
}

static void start(zkl_client **client, zkl_lock **lock)
{
    char path[64];
    snprintf(path, sizeof path, "/dlopen/%ld", (long)getpid());
    CHECK(zkl.client_new(servers, NULL, client) == ZKL_OK);
    CHECK(zkl.mutex_new(*client, path, lock) == ZKL_OK);
    CHECK(zkl.acquire_timeout(*lock, 60000) == ZKL_OK);
}

static void end(zkl_client *client, zkl_lock *lock)
{
    zkl.lock_free(lock);
    zkl.client_free(client);
}

/* Every registered fork handler runs. */
static void fork_a_child(int32_t state, const zkl_client *client)
{
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(zkl.client_state(client) == state ? 0 : 1);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
    zkl_client *client = NULL;
    zkl_lock *lock = NULL;
    CHECK(argc == 3);
    alarm(120);
    servers = argv[1];
    /* See runs_plain() of check.h, which needs the header of the library. */
    const char *under = getenv("UNDER");
    int is_plain = under == NULL || strcmp(under, "plain") == 0;
    int rounds = is_plain ? 100 : 5;
    int descriptors = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    for (int round = 0; round < rounds; round++) {
        void *loaded = load(argv[2]);
        start(&client, &lock);
        end(client, lock);
        CHECK(dlclose(loaded) == 0);
        if (round == 0) {
            fork_a_child(ZKL_E_FORKED, client);
            descriptors = entries("/proc/self/fd");
        }
    }
    CHECK(dlopen(argv[2], RTLD_NOW | RTLD_NOLOAD) != NULL);

    /* A client that still exists. */
    void *loaded = load(argv[2]);
    start(&client, &lock);
    CHECK(dlclose(loaded) == 0);
    fork_a_child(ZKL_E_FORKED, client);
    CHECK(zkl.client_state(client) == ZKL_STATE_CONNECTED && zkl.is_held(lock) == 1);
    end(client, lock);
    CHECK(entries("/proc/self/fd") == descriptors);
    /* The kernel lists a thread for a moment after it was joined. */
    struct timespec pause = {0, 1000000};
    for (int i = 0; entries("/proc/self/task") != threads; i++) {
        CHECK(i < 2000);
        nanosleep(&pause, NULL);
    }
    return 0;
}
