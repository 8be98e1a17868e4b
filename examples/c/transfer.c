/* Moves an amount between two accounts while it holds the locks of both: transfer SERVERS FROM TO AMOUNT SECONDS
 *
 * An account is a file in the current directory. ../README.md explains how to build and run this program. */
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

static long balance(const char *account)
{
    long amount;
    FILE *file = fopen(account, "r");
    if (file == NULL || fscanf(file, "%ld", &amount) != 1) {
        perror(account);
        exit(1);
    }
    fclose(file);
    return amount;
}

static void set_balance(const char *account, long amount)
{
    FILE *file = fopen(account, "w");
    if (file == NULL || fprintf(file, "%ld\n", amount) < 0 || fclose(file) != 0) {
        perror(account);
        exit(1);
    }
}

static const char *transfer(const char *from, const char *to, long amount)
{
    long available = balance(from);
    if (available < amount) return "not enough";
    set_balance(from, available - amount);
    set_balance(to, balance(to) + amount);
    return "transferred";
}

static zkl_lock *lock_of(zkl_client *client, const char *account)
{
    char path[256];
    zkl_lock *lock;
    snprintf(path, sizeof path, "/accounts/%s", account);
    check("zkl_mutex_new", zkl_mutex_new(client, path, &lock));
    return lock;
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: transfer SERVERS FROM TO AMOUNT SECONDS\n");
        return 2;
    }
    zkl_client *client;
    zkl_lock *both;
    check("zkl_client_new", zkl_client_new(argv[1], NULL, &client));
    zkl_lock *accounts[] = {lock_of(client, argv[2]), lock_of(client, argv[3])};
    check("zkl_multi_new", zkl_multi_new(accounts, 2, &both));

    zkl_status status = zkl_acquire_timeout(both, 1000 * atol(argv[5])); /* acquires both locks within the deadline, or none */
    if (status == ZKL_E_TIMEOUT) {
        printf("not in time\n");
    } else {
        check("zkl_acquire_timeout", status);
        printf("%s\n", transfer(argv[2], argv[3], atol(argv[4])));
        check("zkl_release", zkl_release(both));
    }

    zkl_lock_free(both);
    zkl_lock_free(accounts[0]);
    zkl_lock_free(accounts[1]);
    zkl_client_free(client);
    return 0;
}
