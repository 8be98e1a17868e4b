/* Whether a token is the holder's, by what the ensemble knows. */
#include "check.h"

static zkl_client *client, *other;

static int64_t token_of(zkl_lock *lock)
{
    int64_t token = 0;
    OK(zkl_fencing_token(lock, &token));
    return token;
}

/* The tokens of all who stand in a queue. */
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

static void a_token_is_the_holders_until_it_is_released(void)
{
    const char *path = fresh_path();
    zkl_lock *read, *write;
    CHECK(zkl_fence_check(other, path, 1) == 0);
    OK(zkl_rwlock_new(client, path, &read, &write));
    zkl_lock *locks[] = {new_mutex(client, path), new_semaphore_mutex(client, path), read, write};
    for (int i = 0; i < 4; i++) {
        OK(acquire_in_time(locks[i]));
        int64_t token = token_of(locks[i]);
        CHECK(zkl_fence_check(other, path, token) == 1);
        CHECK(zkl_fence_check(client, path, token) == 1);
        CHECK(zkl_fence_check(other, path, token + 1) == 0);
        OK(zkl_release(locks[i]));
        CHECK(zkl_fence_check(other, path, token) == 0);
        zkl_lock_free(locks[i]);
    }
}

static void a_waiters_token_is_not_a_holders(void)
{
    const char *path = fresh_path();
    zkl_lock *held = new_mutex(client, path), *wanted = new_mutex(other, path);
    struct call waiting;
    struct tokens tokens = {{0}, 0};
    OK(zkl_acquire(held));
    start_call(&waiting, take_turn, wanted);
    await_participants(held, 2);
    OK(zkl_participants(held, add_token, &tokens));
    CHECK(tokens.token[0] == token_of(held));
    CHECK(zkl_fence_check(other, path, tokens.token[0]) == 1);
    CHECK(zkl_fence_check(other, path, tokens.token[1]) == 0);
    OK(zkl_release(held));
    CHECK(end_call(&waiting) == ZKL_OK);
    zkl_lock_free(held);
    zkl_lock_free(wanted);
}

static void leases_and_multi_locks_have_one_as_well(void)
{
    char one_path[64], two_path[64], pool[64];
    snprintf(one_path, sizeof one_path, "%s", fresh_path());
    snprintf(two_path, sizeof two_path, "%s", fresh_path());
    snprintf(pool, sizeof pool, "%s", fresh_path());
    zkl_lock *one = new_mutex(client, one_path), *two = new_mutex(client, two_path), *both = new_multi(one, two);
    zkl_semaphore *semaphore = new_semaphore(client, pool, 2);
    zkl_leases *leases = NULL;
    int64_t token = 0;
    OK(zkl_acquire(both));
    CHECK(zkl_fence_check(other, one_path, token_of(both)) == 1);
    CHECK(zkl_fence_check(other, two_path, token_of(both)) == 1);
    OK(zkl_release(one));
    CHECK(zkl_fence_check(other, one_path, token_of(two)) == 0);
    CHECK(zkl_fence_check(other, two_path, token_of(two)) == 1);
    OK(zkl_semaphore_acquire_timeout(semaphore, 2, 20000, &leases));
    OK(zkl_leases_fencing_token(leases, &token));
    CHECK(zkl_fence_check(other, pool, token) == 1);
    OK(zkl_leases_release(leases));
    CHECK(zkl_fence_check(other, pool, token) == 0);
    zkl_semaphore_free(semaphore);
    zkl_lock_free(both);
    zkl_lock_free(one);
    zkl_lock_free(two);
}

static void what_is_no_token_is_named(void)
{
    EXPECT(ZKL_E_INVALID, zkl_fence_check(client, "/a", 0));
    SAYS("token 0");
    EXPECT(ZKL_E_INVALID, zkl_fence_check(client, "/a", INT64_MIN));
    SAYS("token -9223372036854775808");
    CHECK(zkl_fence_check(client, "/a", INT64_MAX) == 0);
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    client = new_client();
    other = new_client();
    RUN(a_token_is_the_holders_until_it_is_released);
    RUN(a_waiters_token_is_not_a_holders);
    RUN(leases_and_multi_locks_have_one_as_well);
    RUN(what_is_no_token_is_named);
    zkl_client_free(client);
    zkl_client_free(other);
    return 0;
}
