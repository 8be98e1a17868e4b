/* Tasks of one thread share one or more locks with tasks of other processes:
 *
 *     epoll SERVERS PATH[,PATH...] NAME TASKS [LIMIT_MS [WORK_MS]]
 *
 *     make build && cd bindings/c/examples
 *     cc epoll.c -o epoll -I../../../include -L../../../target/release -lzklock -Wl,-rpath,$PWD/../../../target/release
 *     ./epoll localhost:2181 /locks/demo alice 3 & ./epoll localhost:2181 /locks/demo bob 3
 *
 * The only thread waits only in epoll_wait(), and the library calls no callback on another thread. Each acquire is an operation with a
 * descriptor. The descriptor of the client reports lost locks. A task that does not acquire its lock within the limit ends without it.
 */
#define _GNU_SOURCE

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <zklock.h>

enum { MOST_LOCKS = 16 };

/* A task waits for its lock with op. Then it works with its hold until its timer expires or the lock is lost. */
struct task {
    enum { WAITS, WORKS, IS_DONE } stage;
    uint64_t number;
    zkl_lock *lock;
    zkl_op *op;
    zkl_hold *hold;
    int timer;
    int64_t token;
};

static const char *name;
static zkl_client *client;
static zkl_lock *locks[MOST_LOCKS];
static struct task *tasks;
static int lock_count, task_count, left, loop, work_ms = 50;

static void check(const char *call, zkl_status status)
{
    if (status < ZKL_OK) {
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
    printf("%s-%" PRIu64 " %s TOKEN %" PRId64 " %" PRId64 "\n", name, task->number, what, task->token,
           (int64_t)now.tv_sec * 1000000000 + now.tv_nsec);
    fflush(stdout);
}

static void watch(int fd, void *what)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = what};
    check_system("epoll_ctl", epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event));
}

static void begin(struct task *task, uint64_t number, int64_t limit)
{
    task->number = number;
    task->lock = locks[number % (uint64_t)lock_count];
    check("zkl_acquire_start", zkl_acquire_start(task->lock, ZKL_OWNER_NEW, limit, &task->op));
    int fd = zkl_op_fd(task->op);
    check("zkl_op_fd", fd);
    watch(fd, task);
}

static void end(struct task *task, const char *how)
{
    say(task, how);
    task->stage = IS_DONE;
    left--;
}

/* The task stops at once, because it has finished or has lost the lock. The library removes the node of the lock in the background. */
static void stop(struct task *task)
{
    close(task->timer);
    end(task, zkl_hold_is_held(task->hold) == 1 ? "released" : "lost");
    zkl_status status = zkl_hold_release_nowait(task->hold);
    if (status != ZKL_E_LOST) check("zkl_hold_release_nowait", status);
}

/* The work of the task takes a while. The loop continues meanwhile. */
static void work(struct task *task)
{
    struct itimerspec pause = {.it_value = {work_ms / 1000, work_ms % 1000 * 1000000L}};
    task->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    check_system("timerfd_create", task->timer);
    check_system("timerfd_settime", timerfd_settime(task->timer, 0, &pause, NULL));
    watch(task->timer, task);
    zkl_hold_info info = {.size = sizeof info};
    check("zkl_hold_view", zkl_hold_view(task->hold, &info));
    task->token = info.token;
    if (zkl_hold_is_held(task->hold) == 0) {
        stop(task);
        return;
    }
    say(task, "acquired");
    task->stage = WORKS;
}

/* The acquire has ended. The loop removes the descriptor before zkl_op_free closes it. */
static void acquired(struct task *task)
{
    zkl_status status = zkl_op_result(task->op);
    if (status != ZKL_E_TIMEOUT) check("zkl_op_result", status);
    check_system("epoll_ctl", epoll_ctl(loop, EPOLL_CTL_DEL, zkl_op_fd(task->op), NULL));
    if (status == ZKL_OK) check("zkl_op_hold", zkl_op_hold(task->op, &task->hold));
    zkl_op_free(task->op);
    if (status == ZKL_OK) {
        work(task);
    } else {
        end(task, "timeout");
    }
}

/* zkl_client_dispatch_events calls this callback on this thread. The token already protects a store; the callback avoids useless work. */
static void on_event(void *user, const zkl_event *event)
{
    (void)user;
    if (event->kind != ZKL_EVENT_LOCK || (event->state != ZKL_LOCK_LOST && event->state != ZKL_LOCK_UNCERTAIN)) return;
    for (int i = 0; i < task_count; i++) {
        struct task *task = &tasks[i];
        if (task->stage == WORKS && task->lock == event->lock && task->token == event->token) stop(task);
    }
}

static void connect_to(const char *servers)
{
    zkl_config *config = zkl_config_new();
    check("zkl_config_set_poll_events", zkl_config_set_poll_events(config, 1));
    check("zkl_config_set_event_callback", zkl_config_set_event_callback(config, on_event, NULL, NULL));
    check("zkl_client_new", zkl_client_new(servers, config, &client));
    zkl_config_free(config);
    int fd = zkl_client_event_fd(client);
    check("zkl_client_event_fd", fd);
    watch(fd, NULL);
}

static void make_locks(char *paths)
{
    for (char *path = strtok(paths, ","); path != NULL && lock_count < MOST_LOCKS; path = strtok(NULL, ",")) {
        check("zkl_mutex_new", zkl_mutex_new(client, path, &locks[lock_count++]));
    }
}

static void run(void)
{
    while (left > 0) {
        struct epoll_event event;
        if (epoll_wait(loop, &event, 1, -1) < 1) continue;
        struct task *task = event.data.ptr;
        if (task == NULL) {
            check("zkl_client_dispatch_events", zkl_client_dispatch_events(client, &(int32_t){0}));
        } else if (task->stage == WAITS) {
            acquired(task);
        } else {
            stop(task);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc < 5 || argc > 7) {
        fprintf(stderr, "usage: %s SERVERS PATH[,PATH...] NAME TASKS [LIMIT_MS [WORK_MS]]\n", argv[0]);
        return 2;
    }
    name = argv[3];
    task_count = left = atoi(argv[4]);
    int64_t limit = argc > 5 ? atoll(argv[5]) : 30000;
    if (argc > 6) work_ms = atoi(argv[6]);
    loop = epoll_create1(EPOLL_CLOEXEC);
    check_system("epoll_create1", loop);
    connect_to(argv[1]);
    make_locks(argv[2]);
    if (lock_count == 0 || task_count < 0) {
        fprintf(stderr, "%s: expected a path and a number of tasks\n", argv[0]);
        return 2;
    }
    tasks = calloc((size_t)task_count, sizeof *tasks);
    for (int i = 0; i < task_count; i++) begin(&tasks[i], (uint64_t)i + 1, limit);
    run();
    for (int i = 0; i < lock_count; i++) zkl_lock_free(locks[i]);
    zkl_client_free(client);
    free(tasks);
    close(loop);
    return 0;
}
