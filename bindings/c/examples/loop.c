/* Tasks of one thread take turns, with others of other processes: loop SERVERS PATH NAME TASKS
 *
 *     make build && cd bindings/c/examples
 *     cc loop.c -o loop -I../../../include -L../../../target/release -lzklock -Wl,-rpath,$PWD/../../../target/release
 *     ./loop localhost:2181 /locks/demo alice 3 & ./loop localhost:2181 /locks/demo bob 3
 */
#define _GNU_SOURCE

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <zklock.h>

/* Waits for the lock by op, then works until the timer. Its number is its name as an owner. */
struct task {
    uint64_t owner;
    zkl_op *op;
    int timer;
    int64_t token;
};

static const char *name;
static zkl_lock *lock;
static int loop;

static void check(const char *call, zkl_status status)
{
    if (status != ZKL_OK) {
        fprintf(stderr, "%s: %s: %s\n", call, zkl_strerror(status), zkl_last_error_message());
        exit(1);
    }
}

static void check_system(const char *call, int result)
{
    if (result < 0) {
        perror(call);
        exit(1);
    }
}

static void say(const struct task *task, const char *what)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    printf("%s-%" PRIu64 " %s TOKEN %" PRId64 " %" PRId64 "\n", name, task->owner, what, task->token,
           (int64_t)now.tv_sec * 1000000000 + now.tv_nsec);
    fflush(stdout);
}

static void watch(struct task *task, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = task};
    check_system("epoll_ctl", epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event));
}

static void begin(struct task *task, uint64_t owner)
{
    task->owner = owner;
    check("zkl_acquire_start", zkl_acquire_start(lock, owner, 30000, &task->op));
    int fd = zkl_op_fd(task->op);
    if (fd < 0) check("zkl_op_fd", fd);
    watch(task, fd);
}

/* The lock is the task's. What it does takes a while, and the loop goes on. */
static void work(struct task *task)
{
    check("zkl_op_result", zkl_op_result(task->op));
    check_system("epoll_ctl", epoll_ctl(loop, EPOLL_CTL_DEL, zkl_op_fd(task->op), NULL));
    zkl_op_free(task->op);
    task->op = NULL;
    check("zkl_fencing_token_as", zkl_fencing_token_as(lock, task->owner, &task->token));
    say(task, "acquired");

    struct itimerspec pause = {.it_value.tv_nsec = 50 * 1000 * 1000};
    task->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    check_system("timerfd_create", task->timer);
    check_system("timerfd_settime", timerfd_settime(task->timer, 0, &pause, NULL));
    watch(task, task->timer);
}

static void finish(struct task *task)
{
    close(task->timer);
    say(task, "released");
    check("zkl_release_nowait_as", zkl_release_nowait_as(lock, task->owner));
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: %s SERVERS PATH NAME TASKS\n", argv[0]);
        return 2;
    }
    name = argv[3];
    int count = atoi(argv[4]);
    zkl_client *client;
    check("zkl_client_new", zkl_client_new(argv[1], NULL, &client));
    check("zkl_mutex_new", zkl_mutex_new(client, argv[2], &lock));
    loop = epoll_create1(EPOLL_CLOEXEC);
    check_system("epoll_create1", loop);

    struct task *tasks = calloc((size_t)count, sizeof *tasks);
    for (int i = 0; i < count; i++) begin(&tasks[i], (uint64_t)i + 1);
    for (int left = count; left > 0;) {
        struct epoll_event event;
        int ready = epoll_wait(loop, &event, 1, -1);
        if (ready < 1) continue;
        struct task *task = event.data.ptr;
        if (task->op != NULL) {
            work(task);
        } else {
            finish(task);
            left--;
        }
    }

    free(tasks);
    close(loop);
    zkl_lock_free(lock);
    zkl_client_free(client);
    return 0;
}
