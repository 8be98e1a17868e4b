/* Writes to a store that refuses writes from a former holder of the lock: fenced_write SERVERS PATH FILE
 *
 * Each line of input is a value to write. ../README.md explains how to build and run this program. */
#define _DEFAULT_SOURCE /* flock */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <zklock.h>

/* Ends the program if a call failed. */
static void check(const char *call, zkl_status status)
{
    if (status != ZKL_OK) {
        fprintf(stderr, "%s: %s: %s\n", call, zkl_strerror(status), zkl_last_error_message());
        exit(1);
    }
}

static void say(const char *what)
{
    printf("%s\n", what);
    fflush(stdout);
}

/* Writes to the store: a file with the largest token so far, and a value. The lock on the file makes the comparison and the write one
 * step, like a transaction in a database. Returns 0 and writes nothing if a later holder has already written. */
static int store(const char *path, int64_t token, const char *value)
{
    int64_t largest = 0;
    FILE *file = fopen(path, "a+");
    if (file == NULL || flock(fileno(file), LOCK_EX) != 0) {
        perror(path);
        exit(1);
    }
    rewind(file);
    int is_new = fscanf(file, "%" SCNd64, &largest) != 1 || token >= largest;
    if (is_new && (ftruncate(fileno(file), 0) != 0 || fprintf(file, "%" PRId64 " %s\n", token, value) < 0)) {
        perror(path);
        exit(1);
    }
    if (fclose(file) != 0) {
        perror(path);
        exit(1);
    }
    return is_new;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: fenced_write SERVERS PATH FILE\n");
        return 2;
    }
    zkl_client *client;
    zkl_lock *lock;
    int64_t token;
    char value[256];
    check("zkl_client_new", zkl_client_new(argv[1], NULL, &client));
    check("zkl_mutex_new", zkl_mutex_new(client, argv[2], &lock));
    check("zkl_acquire_timeout", zkl_acquire_timeout(lock, 30000));
    check("zkl_fencing_token", zkl_fencing_token(lock, &token));

    printf("holds with token %" PRId64 "\n", token);
    fflush(stdout);
    while (fgets(value, sizeof value, stdin) != NULL) {
        value[strcspn(value, "\n")] = '\0';
        say(store(argv[3], token, value) ? "written" : "refused");
    }

    zkl_status status = zkl_release(lock);
    if (status != ZKL_E_LOST) check("zkl_release", status);
    say(status == ZKL_OK ? "released" : "lost");
    zkl_lock_free(lock);
    zkl_client_free(client);
    return 0;
}
