/* Tasks of a libuv loop share a lock with tasks of other processes: libuv SERVERS PATH NAME TASKS
 *
 *     make build && cd bindings/c/examples
 *     cc libuv.c -o libuv -I../../../include -L../../../target/release -lzklock -luv -Wl,-rpath,$PWD/../../../target/release
 *     ./libuv localhost:2181 /locks/demo alice 3 & ./libuv localhost:2181 /locks/demo bob 3
 *
 * Each acquire is an operation, and a uv_poll_t watches its descriptor. Another uv_poll_t could watch for losses, as in epoll.c.
 */
#define _POSIX_C_SOURCE 200809L

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <uv.h>
#include <zklock.h>

/* A task waits for the lock with op, and then works with its hold until its timer expires. */
struct task {
    uint64_t number;
    zkl_op *op;
    zkl_hold *hold;
    uv_poll_t acquired;
    uv_timer_t timer;
    int64_t token;
};

static const char *name;
static zkl_lock *lock;

static void check(const char *call, zkl_status status)
{
    if (status < ZKL_OK) {
        fprintf(stderr, "%s: %s: %s\n", call, zkl_strerror(status), zkl_last_error_message());
        exit(1);
    }
}

static void check_uv(const char *call, int result)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", call, uv_strerror(result));
        exit(1);
    }
}

static void say(const struct task *task, const char *what)
{
    printf("%s-%" PRIu64 " %s TOKEN %" PRId64 " %" PRIu64 "\n", name, task->number, what, task->token, uv_hrtime());
    fflush(stdout);
}

static void finish(uv_timer_t *timer)
{
    struct task *task = timer->data;
    uv_close((uv_handle_t *)timer, NULL);
    say(task, "released");
    check("zkl_hold_release_nowait", zkl_hold_release_nowait(task->hold));
}

/* The loop no longer uses the descriptor, so zkl_op_free may close it. */
static void forget(uv_handle_t *handle)
{
    struct task *task = handle->data;
    zkl_op_free(task->op);
}

/* The task holds the lock. Its work takes a while, and the loop continues meanwhile. */
static void work(uv_poll_t *acquired, int status, int events)
{
    (void)events;
    struct task *task = acquired->data;
    check_uv("uv_poll", status);
    check("zkl_op_hold", zkl_op_hold(task->op, &task->hold));
    uv_close((uv_handle_t *)acquired, forget);
    zkl_hold_info info = {.size = sizeof info};
    check("zkl_hold_view", zkl_hold_view(task->hold, &info));
    task->token = info.token;
    say(task, "acquired");
    check_uv("uv_timer_start", uv_timer_start(&task->timer, finish, 50, 0));
}

static void begin(uv_loop_t *loop, struct task *task, uint64_t number)
{
    task->number = number;
    task->acquired.data = task->timer.data = task;
    check("zkl_acquire_start", zkl_acquire_start(lock, ZKL_OWNER_NEW, 30000, &task->op));
    int fd = zkl_op_fd(task->op);
    check("zkl_op_fd", fd);
    check_uv("uv_timer_init", uv_timer_init(loop, &task->timer));
    check_uv("uv_poll_init", uv_poll_init(loop, &task->acquired, fd));
    check_uv("uv_poll_start", uv_poll_start(&task->acquired, UV_READABLE, work));
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: %s SERVERS PATH NAME TASKS\n", argv[0]);
        return 2;
    }
    name = argv[3];
    int count = atoi(argv[4]);
    uv_loop_t *loop = uv_default_loop();
    zkl_client *client;
    check("zkl_client_new", zkl_client_new(argv[1], NULL, &client));
    check("zkl_mutex_new", zkl_mutex_new(client, argv[2], &lock));

    struct task *tasks = calloc((size_t)count, sizeof *tasks);
    for (int i = 0; i < count; i++) begin(loop, &tasks[i], (uint64_t)i + 1);
    uv_run(loop, UV_RUN_DEFAULT);

    free(tasks);
    check_uv("uv_loop_close", uv_loop_close(loop));
    zkl_lock_free(lock);
    zkl_client_free(client);
    return 0;
}
