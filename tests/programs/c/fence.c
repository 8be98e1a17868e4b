/* The fence check: whether the ensemble confirms that a token belongs to a holder. */
#include "check.h"

static zkl_client *client, *other;

static int64_t token_of(zkl_lock *lock)
{
    int64_t token = 0;
    OK(zkl_fencing_token(lock, &token));
    return token;
}

/* The tokens of all participants in a queue. */
struct tokens {
    int64_t token[8];
    int count;
};

static void add_token(void *user, const zkl_participant *participant)
{
    struct tokens *tokens = user;
    CHECK(tokens->count < 8);
    tokens->token[tokens->count++] = participant->czxid;
}

/* The fence check of a token succeeds while its hold lasts, and fails after the release. */
static void a_token_is_the_holders_until_it_is_released(void)
{
    const char *path = fresh_path();
    zkl_lock *read, *write;
    CHECK(is_valid(other, path, 1) == 0);
    OK(zkl_rwlock_new(client, path, &read, &write));
    zkl_lock *locks[] = {new_mutex(client, path), new_semaphore_mutex(client, path), read, write};
    for (int i = 0; i < 4; i++) {
        OK(acquire_in_time(locks[i]));
        int64_t token = token_of(locks[i]);
        CHECK(is_valid(other, path, token) == 1);
        CHECK(is_valid(client, path, token) == 1);
        CHECK(is_valid(other, path, token + 1) == 0);
        OK(zkl_release(locks[i]));
        CHECK(is_valid(other, path, token) == 0);
        zkl_lock_free(locks[i]);
    }
}

/* A fence check fails if the token belongs to a waiter. */
static void a_waiters_token_is_not_a_holders(void)
{
    const char *path = fresh_path();
    zkl_lock *held = new_mutex(client, path), *wanted = new_mutex(other, path);
    struct call waiting;
    struct tokens tokens = {{0}, 0};
    OK(zkl_acquire(held));
    start_call(&waiting, acquire_and_release, wanted);
    await_participants(held, 2);
    OK(zkl_participants(held, add_token, &tokens));
    CHECK(tokens.token[0] == token_of(held));
    CHECK(is_valid(other, path, tokens.token[0]) == 1);
    CHECK(is_valid(other, path, tokens.token[1]) == 0);
    OK(zkl_release(held));
    CHECK(end_call(&waiting) == ZKL_OK);
    zkl_lock_free(held);
    zkl_lock_free(wanted);
}

/* A fence check also accepts the tokens of leases and of multi-locks. */
static void tokens_of_leases_and_multi_locks_can_be_checked(void)
{
    char one_path[64], two_path[64], pool[64];
    snprintf(one_path, sizeof one_path, "%s", fresh_path());
    snprintf(two_path, sizeof two_path, "%s", fresh_path());
    snprintf(pool, sizeof pool, "%s", fresh_path());
    zkl_lock *one = new_mutex(client, one_path), *two = new_mutex(client, two_path), *both = new_multi(one, two);
    zkl_semaphore *semaphore = new_semaphore(client, pool, 2);
    zkl_hold *leases = NULL;
    int64_t token = 0;
    OK(zkl_acquire(both));
    CHECK(is_valid(other, one_path, token_of(both)) == 1);
    CHECK(is_valid(other, two_path, token_of(both)) == 1);
    OK(zkl_release(one));
    CHECK(is_valid(other, one_path, token_of(two)) == 0);
    CHECK(is_valid(other, two_path, token_of(two)) == 1);
    OK(zkl_semaphore_acquire_timeout(semaphore, 2, 60000, &leases));
    OK(hold_token(leases, &token));
    CHECK(is_valid(other, pool, token) == 1);
    OK(zkl_hold_release(leases));
    CHECK(is_valid(other, pool, token) == 0);
    zkl_semaphore_free(semaphore);
    zkl_lock_free(both);
    zkl_lock_free(one);
    zkl_lock_free(two);
}

/* If the token is not positive, the fence check fails with INVALID, and the message contains the token. */
static void invalid_token_returns_invalid(void)
{
    int32_t valid = -7;
    EXPECT(ZKL_E_INVALID, zkl_fence_check(client, "/a", 0, &valid));
    EXPECT_MESSAGE("token is 0");
    EXPECT(ZKL_E_INVALID, zkl_fence_check(client, "/a", INT64_MIN, &valid));
    EXPECT_MESSAGE("token is -9223372036854775808");
    CHECK(valid == -7);
    CHECK(is_valid(client, "/a", INT64_MAX) == 0);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    client = new_client();
    other = new_client();
    RUN(a_token_is_the_holders_until_it_is_released);
    RUN(a_waiters_token_is_not_a_holders);
    RUN(tokens_of_leases_and_multi_locks_can_be_checked);
    RUN(invalid_token_returns_invalid);
    zkl_client_free(client);
    zkl_client_free(other);
    return 0;
}
