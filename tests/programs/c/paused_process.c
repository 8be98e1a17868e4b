/* A process that was stopped for longer than its session timeout. The test checks what the process sees first, before it can
 * have received anything. */
#include "check.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include <zklock_standalone.h>

/* The session timeout of the holder in milliseconds. */
#define TIMEOUT 2000

/* The holder runs in a separate process. It checks its hold continuously and prints the first result after the pause. */

static int told;

static void on_event(void *user, const zkl_event *event)
{
    (void)user;
    if (event->kind == ZKL_EVENT_LOCK) __atomic_store_n(&told, event->state, __ATOMIC_SEQ_CST);
}

static int hold(const char *path)
{
    zkl_client *client = NULL;
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set_session_timeout_ms(config, TIMEOUT));
    OK(zkl_config_set_event_callback(config, on_event, NULL, NULL));
    OK(zkl_client_new(servers, config, &client));
    zkl_lock *lock = new_mutex(client, path);
    int64_t token, remaining = -1, before = now_ms(), now = before;
    OK(zkl_acquire(lock));
    OK(zkl_fencing_token(lock, &token));
    printf("holding %" PRId64 "\n", token);
    fflush(stdout);
    int32_t held;
    do {
        before = now;
        /* If the pause interrupts a check, its result may be older than the pause, and another check follows. */
        now = now_ms();
        held = zkl_is_held(lock);
    } while (held == 1 && now - before < 2 * TIMEOUT - 200);
    zkl_status status = zkl_remaining_ms(lock, &remaining);
    int32_t state = zkl_lock_state(lock);
    CHECK(held == 0);
    CHECK(state == ZKL_LOCK_UNCERTAIN || state == ZKL_LOCK_LOST);
    CHECK(status == ZKL_E_LOST || (status == ZKL_OK && remaining == 0));
    AWAIT(__atomic_load_n(&told, __ATOMIC_SEQ_CST) >= ZKL_LOCK_UNCERTAIN);
    printf("knows\n");
    fflush(stdout);
    status = zkl_release(lock);
    printf("released %d\n", status);
    fflush(stdout);
    zkl_lock_free(lock);
    zkl_client_free(client);
    zkl_config_free(config);
    return 0;
}

/* The observer. */

static const char *program;

struct process {
    pid_t pid;
    FILE *output;
    char line[64];
};

static void start(struct process *process, const char *address, const char *path)
{
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    process->pid = fork();
    CHECK(process->pid >= 0);
    if (process->pid == 0) {
        dup2(pipes[1], STDOUT_FILENO);
        execl(program, program, address, path, (char *)NULL);
        _exit(127);
    }
    close(pipes[1]);
    process->output = fdopen(pipes[0], "r");
}

static const char *says(struct process *process)
{
    CHECK(fgets(process->line, sizeof process->line, process->output) != NULL);
    process->line[strcspn(process->line, "\n")] = '\0';
    return process->line;
}

static void stop(struct process *process)
{
    int status;
    CHECK(kill(process->pid, SIGSTOP) == 0);
    CHECK(waitpid(process->pid, &status, WUNTRACED) == process->pid && WIFSTOPPED(status));
}

static void go_on(struct process *process)
{
    CHECK(kill(process->pid, SIGCONT) == 0);
}

static void end(struct process *process)
{
    int status;
    CHECK(waitpid(process->pid, &status, 0) == process->pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    fclose(process->output);
}

/* If another client got the lock during the pause, the first check after the pause does not report a safe hold. */
static void paused_holder_reports_lost_while_another_holds(void)
{
    struct process holder;
    const char *path = fresh_path();
    int64_t token = 0, next = 0;
    start(&holder, servers, path);
    CHECK(sscanf(says(&holder), "holding %" SCNd64, &token) == 1);
    stop(&holder);
    int64_t start = now_ms();
    zkl_client *client = new_client();
    zkl_lock *lock = new_mutex(client, path);
    OK(zkl_acquire_timeout(lock, 60000));
    OK(zkl_fencing_token(lock, &next));
    CHECK(next > token);
    while (now_ms() - start < 2 * TIMEOUT) sleep_ms(10);
    go_on(&holder);
    CHECK(strcmp(says(&holder), "knows") == 0);
    CHECK(strcmp(says(&holder), "released -6") == 0);
    CHECK(zkl_is_held(lock) == 1);
    end(&holder);
    OK(zkl_release(lock));
    zkl_lock_free(lock);
    zkl_client_free(client);
}

/* Even without a server, the first check after the pause does not report a safe hold. */
static void paused_holder_reports_unsafe_without_server(void)
{
    struct process holder;
    zkl_standalone *server = NULL;
    CHECK(zkl_standalone_start(NULL, &server) == ZKL_OK);
    start(&holder, zkl_standalone_address(server), fresh_path());
    says(&holder);
    stop(&holder);
    CHECK(zkl_standalone_halt(server) == ZKL_OK);
    sleep_ms(2 * TIMEOUT);
    go_on(&holder);
    CHECK(strcmp(says(&holder), "knows") == 0);
    /* No server confirms the release. */
    CHECK(strcmp(says(&holder), "released -9") == 0);
    end(&holder);
    zkl_standalone_stop(server);
}

int main(int argc, char **argv)
{
    program = argv[0];
    if (argc == 3) {
        begin(argc, argv, 2);
        return hold(argv[2]);
    }
    begin(argc, argv, 1);
    RUN(paused_holder_reports_lost_while_another_holds);
    RUN(paused_holder_reports_unsafe_without_server);
    return 0;
}
