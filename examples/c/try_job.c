/* Runs a job unless another process is running it: try_job SERVERS PATH
 *
 * The job ends when a line of input arrives. ../README.md explains how to build and run this program. */
#include <stdio.h>
#include <stdlib.h>

#include <zklock.h>

/* Ends the program if a call failed. */
static void check(const char *call, zkl_status status)
{
    if (status != ZKL_OK) {
        fprintf(stderr, "%s: %s: %s\n", call, zkl_strerror(status), zkl_last_error_message());
        exit(1);
    }
}

static void job(void)
{
    printf("running\n");
    fflush(stdout);
    getchar();
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: try_job SERVERS PATH\n");
        return 2;
    }
    zkl_client *client;
    zkl_lock *lock;
    check("zkl_client_new", zkl_client_new(argv[1], NULL, &client));
    check("zkl_mutex_new", zkl_mutex_new(client, argv[2], &lock));

    zkl_status status = zkl_acquire_timeout(lock, 0); /* one attempt, which does not wait */
    if (status == ZKL_E_TIMEOUT) {
        printf("skipped: %s\n", zkl_last_error_message()); /* the message names the holder */
    } else {
        check("zkl_acquire_timeout", status);
        job();
        check("zkl_release", zkl_release(lock)); /* fails with LOST if the lock was lost during the job */
        printf("done\n");
    }

    zkl_lock_free(lock);
    zkl_client_free(client);
    return 0;
}
