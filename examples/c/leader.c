/* Works as the leader until the lock is lost, then stops and acquires it again: leader SERVERS PATH NAME
 *
 * ../README.md explains how to build and run this program. */
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

static void say(const char *name, const char *what)
{
    printf("%s %s\n", name, what);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: leader SERVERS PATH NAME\n");
        return 2;
    }
    const char *name = argv[3];
    zkl_client *client;
    zkl_lock *lock;
    check("zkl_client_new", zkl_client_new(argv[1], NULL, &client));
    check("zkl_mutex_new", zkl_mutex_new(client, argv[2], &lock));

    for (;;) {
        check("zkl_acquire", zkl_acquire(lock)); /* also waits while no server answers */
        say(name, "leads");
        zkl_status status;
        while ((status = zkl_wait_lost(lock, 200)) == ZKL_E_TIMEOUT)
            say(name, "works"); /* a step must be short compared with the session timeout */
        say(name, "stops");
        if (status != ZKL_E_LOST) check("zkl_wait_lost", status);

        status = zkl_release(lock); /* the hold has ended, even if no server can confirm this */
        if (status != ZKL_E_LOST && status != ZKL_E_CONNECTION) check("zkl_release", status);
    }
}
