/* The metrics of a client, as a struct and as text for Prometheus. (standalone.c tests losses and reconnects.) */
#include "check.h"

#include <stddef.h>

static zkl_client *client, *other;

static zkl_metrics of(zkl_client *whose)
{
    zkl_metrics metrics;
    memset(&metrics, 0xa5, sizeof metrics);
    OK(zkl_client_metrics(whose, sizeof metrics, &metrics));
    CHECK(metrics.size == sizeof metrics);
    return metrics;
}

/* Checks that each bucket includes all smaller ones and that the last bucket includes all values. */
static void check_histogram(const zkl_histogram *histogram)
{
    uint64_t least_ns = 0, before = 0;
    for (int i = 0; i < ZKL_HISTOGRAM_BUCKETS; i++) {
        CHECK(histogram->buckets[i] >= before);
        if (i > 0) least_ns += (histogram->buckets[i] - before) * ((uint64_t)ZKL_HISTOGRAM_FIRST_NS << (i - 1));
        before = histogram->buckets[i];
    }
    CHECK(before == histogram->count && histogram->sum_ns >= least_ns);
}

/* Each acquire and its release count as one wait and one hold, and re-entries are counted separately. */
static void acquires_count_waits_and_holds(void)
{
    zkl_client *own = new_client();
    zkl_lock *lock = new_mutex(own, fresh_path());
    for (int i = 0; i < 3; i++) {
        OK(zkl_acquire(lock));
        OK(zkl_acquire(lock));
        CHECK(of(own).held == 1);
        OK(zkl_release(lock));
        sleep_ms(10);
        OK(zkl_release(lock));
    }
    zkl_metrics now = of(own);
    CHECK(now.acquires_ok == 3 && now.reentries == 3 && now.releases == 3 && now.held == 0 && now.handovers == 0);
    CHECK(now.waits.count == 3 && now.holds.count == 3 && now.holds.sum_ns >= 30000000);
    CHECK(now.state == ZKL_STATE_CONNECTED && now.session_timeout_ms == 10000);
    CHECK(now.sessions == 1 && now.connections == 1 && now.reconnects == 0 && now.requests >= 6 && now.bytes_sent > 0);
    CHECK(now.round_trips.count == now.answers && now.bytes_received > 0);
    check_histogram(&now.waits);
    check_histogram(&now.holds);
    check_histogram(&now.round_trips);
    zkl_lock_free(lock);
    zkl_client_free(own);
    EXPECT(ZKL_E_HANDLE, zkl_client_metrics(own, sizeof now, &now));
}

static zkl_status acquire_with_short_timeout(zkl_lock *lock)
{
    return zkl_acquire_timeout(lock, 1000);
}

static void add_nodes_ahead(void *user, const zkl_wait *wait)
{
    *(uint64_t *)user += wait->count;
}

static uint64_t nodes_ahead(zkl_lock *lock)
{
    uint64_t count = 0;
    OK(zkl_waiting(lock, add_nodes_ahead, &count));
    return count;
}

/* Timeouts, cancelled acquires and hand-overs are counted. */
static void a_timeout_and_a_handover(void)
{
    const char *path = fresh_path();
    zkl_lock *held = new_mutex(client, path), *wanted = new_mutex(other, path);
    zkl_metrics before = of(other), now;
    struct call call;
    OK(zkl_acquire(held));
    CHECK(on_new_thread(acquire_with_short_timeout, wanted) == ZKL_E_TIMEOUT);
    start_call(&call, acquire_and_release, wanted);
    AWAIT(of(other).waiting == 1);
    await_participants(held, 2);
    OK(zkl_cancel(wanted));
    CHECK(end_call(&call) == ZKL_E_CANCELED);
    /* The library deletes the node of a cancelled acquire later. */
    await_participants(held, 1);
    start_call(&call, acquire_and_release, wanted);
    /* The waiter's own node is in the queue first. The client learns a moment later which node is ahead. */
    AWAIT(nodes_ahead(wanted) == 1);
    sleep_ms(100); /* The shortest time that the metrics must report for this wait. */
    OK(zkl_release(held));
    CHECK(end_call(&call) == ZKL_OK);
    now = of(other);
    CHECK(now.acquires_ok == before.acquires_ok + 1 && now.handovers == before.handovers + 1);
    CHECK(now.acquires_timeout == before.acquires_timeout + 1 && now.acquires_canceled == before.acquires_canceled + 1);
    CHECK(now.waits.sum_ns - before.waits.sum_ns >= 100000000 && now.waiting == 0);
    zkl_lock_free(held);
    zkl_lock_free(wanted);
}

/* If the program was compiled with fewer or more fields, the library writes only the fields that both know. */
static void metrics_struct_is_filled_up_to_the_callers_size(void)
{
    struct {
        zkl_metrics known;
        uint64_t newer;
    } large;
    memset(&large, 0xa5, sizeof large);
    OK(zkl_client_metrics(client, sizeof large, &large.known));
    CHECK(large.known.size == sizeof(zkl_metrics) && large.newer == UINT64_C(0xa5a5a5a5a5a5a5a5));
    size_t until_held = offsetof(zkl_metrics, waiting);
    memset(&large, 0xa5, sizeof large);
    OK(zkl_client_metrics(client, until_held, &large.known));
    CHECK(large.known.size == until_held && large.known.held == 0);
    CHECK(large.known.waiting == UINT64_C(0xa5a5a5a5a5a5a5a5));
    OK(zkl_client_metrics(client, sizeof(uint32_t), &large.known));
    CHECK(large.known.size == 4);
    EXPECT(ZKL_E_INVALID, zkl_client_metrics(client, sizeof(uint32_t) - 1, &large.known));
    EXPECT_MESSAGE("size of metrics_out is 3");
    EXPECT(ZKL_E_INVALID, zkl_client_metrics(client, sizeof large, NULL));
    EXPECT_MESSAGE("metrics_out is NULL");
}

/* The value of a series, which must occur exactly once. */
static double value(const char *text, const char *series)
{
    const char *at = NULL;
    char *end;
    size_t len = strlen(series);
    for (const char *line = text; *line != '\0'; line = strchr(line, '\n') + 1) {
        if (strncmp(line, series, len) != 0 || line[len] != ' ') continue;
        CHECK(at == NULL);
        at = line;
    }
    CHECK(at != NULL);
    double number = strtod(at + len, &end);
    CHECK(*end == '\n');
    return number;
}

/* The Prometheus text contains the same numbers as the struct. */
static void the_text_has_the_same_numbers(void)
{
    static char text[65536];
    size_t needed = 0;
    zkl_metrics now = of(client);
    OK(zkl_client_prometheus(client, "app=\"a \\\"b\\\"\",zone=\"\"", text, sizeof text, &needed));
    CHECK(needed == strlen(text) + 1 && text[needed - 2] == '\n');
    CHECK(value(text, "zklock_acquires_total{app=\"a \\\"b\\\"\",zone=\"\",outcome=\"ok\"}") == (double)now.acquires_ok);
    OK(zkl_client_prometheus(client, NULL, text, sizeof text, &needed));
    CHECK(value(text, "zklock_acquires_total{outcome=\"ok\"}") == (double)now.acquires_ok);
    CHECK(value(text, "zklock_hold_seconds_count") == (double)now.holds.count);
    CHECK(value(text, "zklock_hold_seconds_bucket{le=\"+Inf\"}") == (double)now.holds.count);
    CHECK(value(text, "zklock_hold_seconds_bucket{le=\"0.0001\"}") == (double)now.holds.buckets[1]);
    CHECK(value(text, "zklock_hold_seconds_bucket{le=\"209.7152\"}") == (double)now.holds.buckets[22]);
    double error = value(text, "zklock_hold_seconds_sum") - (double)now.holds.sum_ns / 1e9;
    CHECK(error < 1e-9 && error > -1e-9);
    CHECK(value(text, "zklock_client_state{state=\"connected\"}") == 1);
    CHECK(value(text, "zklock_client_state{state=\"lost\"}") == 0);
    CHECK(strstr(text, "# TYPE zklock_hold_seconds histogram\n") != NULL);

    char small[16] = "untouched";
    EXPECT(ZKL_E_BUFFER, zkl_client_prometheus(client, "", small, sizeof small, &needed));
    CHECK(strcmp(small, "untouched") == 0 && needed > 4000);
    EXPECT(ZKL_E_BUFFER, zkl_client_prometheus(client, "", NULL, 0, &needed));
    OK(zkl_client_prometheus(client, "", text, needed + 64, &needed));
    EXPECT(ZKL_E_INVALID, zkl_client_prometheus(client, "app=a", text, sizeof text, &needed));
    EXPECT_MESSAGE("labels: expected name=\"value\" at \"app=a\"");
    EXPECT(ZKL_E_INVALID, zkl_client_prometheus(client, "le=\"1\"", text, sizeof text, &needed));
    EXPECT_MESSAGE("\"le\"");
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    client = new_client();
    other = new_client();
    RUN(acquires_count_waits_and_holds);
    RUN(a_timeout_and_a_handover);
    RUN(metrics_struct_is_filled_up_to_the_callers_size);
    RUN(the_text_has_the_same_numbers);
    zkl_client_free(client);
    zkl_client_free(other);
    return 0;
}
