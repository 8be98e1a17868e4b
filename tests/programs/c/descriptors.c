/* A program that closes the library's descriptors, as daemons close all descriptors from 3 on. It then opens other files,
 * which get the same numbers. The library must not touch these files, and its clients must recover. */
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { FIRST = 3, LAST = 1024, SESSION_MS = 10000 };

enum kind { NOTHING, FILES, SOCKETS, SOCKETS_WITH_INPUT, EVENTFDS, EPOLLS, KINDS };

static enum kind kind;
/* The other files have the numbers from FIRST to this one. */
static int last_stranger;
static struct stat files[LAST + 1];
/* The other ends of the files that are sockets, and the descriptors that the epoll files watch. */
static int far[LAST + 1];

static zkl_client *client, *other;
static zkl_lock *held, *wanted, *wanted_by_other, *held_by_other, *spare;

static int highest_open(void)
{
    int highest = FIRST;
    for (int fd = FIRST; fd <= LAST; fd++) {
        if (fcntl(fd, F_GETFD) >= 0) highest = fd;
    }
    return highest;
}

/* Moves a file to a number that the library never used. */
static int move_up(int fd)
{
    int moved = fcntl(fd, F_DUPFD, LAST + 1);
    CHECK(moved > LAST && close(fd) == 0);
    return moved;
}

static int open_file(void)
{
    char name[] = "/tmp/zklock-descriptors-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0 && unlink(name) == 0);
    return fd;
}

static int open_socket(int number)
{
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    far[number] = move_up(pair[1]);
    if (kind == SOCKETS_WITH_INPUT) CHECK(send(far[number], "stranger", 8, 0) == 8);
    return pair[0];
}

static int open_epoll(int number)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = number};
    far[number] = move_up(eventfd(1, 0));
    int fd = epoll_create1(0);
    CHECK(fd >= 0 && epoll_ctl(fd, EPOLL_CTL_ADD, far[number], &event) == 0);
    return fd;
}

static int open_foreign_file(int number)
{
    switch (kind) {
    case FILES: return open_file();
    case EVENTFDS: return eventfd((unsigned)number, 0);
    case EPOLLS: return open_epoll(number);
    default: return open_socket(number);
    }
}

static bool is_stopped(pid_t process)
{
    char name[64], line[512] = "", state = 0;
    snprintf(name, sizeof name, "/proc/%ld/stat", (long)process);
    FILE *file = fopen(name, "r");
    CHECK(file != NULL && fgets(line, sizeof line, file) != NULL && fclose(file) == 0);
    CHECK(sscanf(strrchr(line, ')'), ") %c", &state) == 1);
    return state == 'T';
}

/* Closes the library's descriptors and gives each number to another file while the library is stopped. A second process
 * that shares the descriptors does this and stops the first one. Therefore no thread is between the check of a number and
 * its use. */
static void reuse_descriptor_numbers(bool and_leave_none)
{
    int strangers[LAST + 1], status;
    last_stranger = kind == NOTHING ? FIRST - 1 : highest_open() + 4;
    for (int fd = FIRST; fd <= last_stranger; fd++) {
        strangers[fd] = move_up(open_foreign_file(fd));
        CHECK(fstat(strangers[fd], &files[fd]) == 0);
    }
    if (and_leave_none) {
        struct rlimit limit;
        CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
        limit.rlim_cur = (rlim_t)last_stranger + 1;
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    }
    pid_t parent = getpid(), child = (pid_t)syscall(SYS_clone, (long)(CLONE_FILES | SIGCHLD), 0L, 0L, 0L, 0L);
    CHECK(child >= 0);
    if (child == 0) {
        struct rlimit limit = {LAST * 4, LAST * 4};
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        CHECK(kill(parent, SIGSTOP) == 0);
        AWAIT(is_stopped(parent));
        for (int fd = FIRST; fd <= last_stranger; fd++) CHECK(dup2(strangers[fd], fd) == fd && close(strangers[fd]) == 0);
        for (int fd = last_stranger + 1; fd <= LAST; fd++) close(fd);
        CHECK(kill(parent, SIGCONT) == 0);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void expect_bytes(int fd, const char *bytes)
{
    char buf[64];
    ssize_t count = recv(fd, buf, sizeof buf, MSG_DONTWAIT);
    if (*bytes == '\0') {
        CHECK(count == -1 && errno == EAGAIN);
    } else {
        CHECK(count == (ssize_t)strlen(bytes) && memcmp(buf, bytes, strlen(bytes)) == 0);
    }
}

/* Checks that each file is open and has its original content. */
static void expect_foreign_files_untouched(void)
{
    for (int fd = FIRST; fd <= last_stranger; fd++) {
        struct stat now;
        uint64_t count;
        struct epoll_event events[2];
        CHECK(fstat(fd, &now) == 0 && now.st_ino == files[fd].st_ino && now.st_dev == files[fd].st_dev);
        switch (kind) {
        case FILES: CHECK(now.st_size == 0 && lseek(fd, 0, SEEK_CUR) == 0); break;
        case EVENTFDS: CHECK(read(fd, &count, sizeof count) == sizeof count && count == (uint64_t)fd); break;
        case EPOLLS: CHECK(epoll_wait(fd, events, 2, 0) == 1 && events[0].data.fd == fd); break;
        default:
            expect_bytes(fd, kind == SOCKETS_WITH_INPUT ? "stranger" : "");
            expect_bytes(far[fd], "");
        }
    }
}

/* Queries the hold during this time and checks that every call returns immediately. */
static void is_held_does_not_block(int ms)
{
    int64_t end = now_ms() + ms;
    while (now_ms() < end) {
        int64_t asked = now_ms();
        int32_t is_held = zkl_is_held(held);
        CHECK(is_held == 0 || is_held == 1);
        CHECK(now_ms() - asked <= slack_ms());
        sleep_ms(1);
    }
}

static int64_t processor_ms(void)
{
    struct rusage used;
    CHECK(getrusage(RUSAGE_SELF, &used) == 0);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000 + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000;
}

static void count_event(void *user, const zkl_event *event)
{
    (void)event;
    ++*(int *)user;
}

static zkl_client *polling_client(int *events)
{
    zkl_client *made = NULL;
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set_session_timeout_ms(config, SESSION_MS));
    OK(zkl_config_set_event_callback(config, count_event, events, NULL));
    OK(zkl_config_set_poll_events(config, 1));
    OK(zkl_client_new(servers, config, &made));
    zkl_config_free(config);
    return made;
}

/* The first client holds a lock, and a thread that reads its socket waits. The second client holds a lock, and an operation
 * waits. */
static void start_all(struct call *waiting, zkl_op **op)
{
    static int events;
    client = polling_client(&events);
    other = polling_client(&events);
    const char *path = fresh_path();
    held = new_mutex(client, path);
    wanted_by_other = new_mutex(other, path);
    path = fresh_path();
    held_by_other = new_mutex(other, path);
    wanted = new_mutex(client, path);
    spare = new_mutex(client, fresh_path());
    OK(zkl_acquire(held));
    OK(zkl_acquire(held_by_other));
    OK(zkl_acquire_start(wanted_by_other, 7, 60000, op));
    CHECK(zkl_op_fd(*op) >= FIRST && zkl_client_event_fd(client) >= FIRST);
    start_call(waiting, zkl_acquire, wanted);
    await_participants(held_by_other, 2);
    await_participants(wanted_by_other, 2);
}

static void free_all(void)
{
    int64_t began = now_ms();
    zkl_lock *const locks[] = {held, wanted, wanted_by_other, held_by_other, spare};
    for (int i = 0; i < 5; i++) zkl_lock_free(locks[i]);
    zkl_client_free(client);
    zkl_client_free(other);
    CHECK(now_ms() - began <= 6000 + slack_ms());
}

static bool is_readable(int fd)
{
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    return poll(&polled, 1, 60000) == 1 && polled.revents == POLLIN;
}

/* The clients recover with the same sessions. */
static void clients_recover(void)
{
    struct call waiting;
    zkl_op *op;
    start_all(&waiting, &op);
    int64_t session_id = zkl_client_session_id(client);
    reuse_descriptor_numbers(false);

    is_held_does_not_block(100);
    OK(zkl_acquire_timeout(spare, SESSION_MS));
    OK(zkl_release(spare));
    is_held_does_not_block(100);
    CHECK(zkl_is_held(held) == 1);
    CHECK(zkl_client_session_id(client) == session_id);

    /* The old numbers belong to other files now, so the library uses new ones. */
    int fd = zkl_op_fd(op);
    CHECK(fd > last_stranger);
    CHECK(zkl_client_event_fd(client) > last_stranger && zkl_client_event_fd(client) != fd);
    EXPECT(ZKL_E_PENDING, zkl_op_result(op));
    OK(zkl_release(held));
    CHECK(is_readable(fd) && is_readable(zkl_client_event_fd(client)));
    OK(zkl_op_result(op));
    OK(zkl_hold_release(take_hold(op)));
    OK(zkl_release(held_by_other));
    OK(end_call(&waiting));
    CHECK(dispatch(client) > 0);
    free_all();
    expect_foreign_files_untouched();
}

/* While the process has no free descriptor, until after the end of the lease, all calls still end in time. */
static void clients_without_descriptors_end_their_calls_in_time(void)
{
    struct call waiting;
    struct rlimit limit;
    zkl_op *op;
    start_all(&waiting, &op);
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    reuse_descriptor_numbers(true);

    int64_t began = now_ms(), used = processor_ms();
    zkl_status status = zkl_acquire_timeout(spare, 1500);
    CHECK(status == ZKL_E_EXHAUSTED);
    EXPECT_MESSAGE("no file descriptors left");
    CHECK(now_ms() - began >= 1500 && now_ms() - began <= 1500 + slack_ms());
    while (zkl_is_held(held) != 0) is_held_does_not_block(50);
    CHECK(now_ms() - began <= SESSION_MS + slack_ms());
    /* The library's threads must not poll in a loop. */
    CHECK((processor_ms() - used) * 2 < now_ms() - began);

    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    OK(zkl_acquire_timeout(spare, 30000));
    zkl_op_free(op);
    OK(zkl_cancel(wanted));
    status = end_call(&waiting);
    CHECK(status == ZKL_E_CANCELED || status == ZKL_OK);
    free_all();
    expect_foreign_files_untouched();
}

/* Starts a test in a new process that has no other descriptors. */
static pid_t start_alone(void (*scene)(void), enum kind of)
{
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(120);
        kind = of;
        scene();
        _exit(0);
    }
    return child;
}

static bool succeeded(pid_t child, enum kind of)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
    fprintf(stderr, "with kind %d: status %d\n", (int)of, status);
    return false;
}

int main(int argc, char **argv)
{
    begin(argc, argv, 1);
    /* The foreign files have numbers above LAST, which is the default limit of many systems. */
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    if (limit.rlim_cur < LAST * 4) limit.rlim_cur = LAST * 4;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    pid_t recovering[KINDS];
    for (enum kind of = NOTHING; of < KINDS; of++) recovering[of] = start_alone(clients_recover, of);
    pid_t with_sockets = start_alone(clients_without_descriptors_end_their_calls_in_time, SOCKETS);
    pid_t with_files = start_alone(clients_without_descriptors_end_their_calls_in_time, FILES);
    bool all = true;
    for (enum kind of = NOTHING; of < KINDS; of++) all &= succeeded(recovering[of], of);
    all &= succeeded(with_sockets, SOCKETS);
    all &= succeeded(with_files, FILES);
    return all ? 0 : 1;
}
