// The ways in which a program that uses zklock can end: process_exit SERVERS HOW. In each case there is a client, a
// hold, and a thread that waits for a lock. The program must end immediately and as requested, whatever the threads of
// the library do.

#include <zklock.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dirent.h>
#include <exception>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>

namespace {

#define CHECK(condition)                                                                                                       \
    do {                                                                                                                       \
        if (!(condition)) {                                                                                                    \
            std::fprintf(stderr, "%s:%d: %s does not hold; last error: \"%s\"\n", __FILE__, __LINE__, #condition,              \
                         zkl_last_error_message());                                                                            \
            _exit(99);                                                                                                         \
        }                                                                                                                      \
    } while (0)

#define OK(call) CHECK((call) == ZKL_OK)

const char *servers;
std::string path;
zkl_client *client;
std::atomic<zkl_lock *> held, wanted;
std::atomic<zkl_status> waited{1};

void sleep_ms(long ms)
{
    const timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, nullptr);
}

void count(void *user, const zkl_participant *)
{
    ++*static_cast<int *>(user);
}

void await_waiter()
{
    for (int waiting = 0; waiting != 2; sleep_ms(2)) {
        waiting = 0;
        OK(zkl_participants(wanted, count, &waiting));
    }
}

/// A session that outlasts the time limit of the test. A program that waits for the end of its session exceeds the limit.
zkl_config *new_config()
{
    zkl_config *config = zkl_config_new();
    OK(zkl_config_set_session_timeout_ms(config, 60000));
    return config;
}

zkl_client *new_client(zkl_config *config)
{
    zkl_client *made = nullptr;
    OK(zkl_client_new(servers, config, &made));
    zkl_config_free(config);
    return made;
}

zkl_lock *new_mutex(zkl_client *of, const std::string &where)
{
    zkl_lock *made = nullptr;
    OK(zkl_mutex_new(of, where.c_str(), &made));
    return made;
}

/// Creates a client that holds a lock, and a thread `waiter` that waits for the same lock.
std::thread begin(zkl_event_cb callback = nullptr, int *code = nullptr)
{
    zkl_config *config = new_config();
    if (callback != nullptr) OK(zkl_config_set_event_callback(config, callback, code, nullptr));
    client = new_client(config);
    held = new_mutex(client, path);
    wanted = new_mutex(client, path);
    OK(zkl_acquire(held));
    std::thread waiter([] { waited = zkl_acquire(wanted); });
    /* A callback that ends the program waits for the waiter itself. It may close the client while this thread queries
     * it. */
    if (callback == nullptr) await_waiter();
    return waiter;
}

/// Wakes the waiter and frees the handles.
void clean_up()
{
    zkl_client_free(client);
    while (waited == 1) sleep_ms(1);
    CHECK(waited == ZKL_E_CLOSED);
    zkl_lock_free(held);
    zkl_lock_free(wanted);
}

int descriptors()
{
    DIR *directory = opendir("/proc/self/fd");
    CHECK(directory != nullptr);
    int entries = 0;
    while (const dirent *entry = readdir(directory)) entries += entry->d_name[0] != '.';
    closedir(directory);
    return entries - 1;
}

/// Runs a function after main, when all objects that were created later have been destroyed.
struct after_main {
    void (*todo)() = nullptr;
    ~after_main()
    {
        if (todo != nullptr) todo();
    }
} last;

void clean_up_and_start_again()
{
    clean_up();
    zkl_client *another = new_client(new_config());
    zkl_lock *lock = new_mutex(another, path);
    OK(zkl_acquire_timeout(lock, 5000));
    OK(zkl_release(lock));
    zkl_client_free(another);
    zkl_lock_free(lock);
}

/// Calls exit on the library's thread, which then also runs the exit handlers.
void exit_from_a_callback(void *code, const zkl_event *event)
{
    if (event->kind == ZKL_EVENT_LOCK && event->state == ZKL_LOCK_HELD) {
        // The other thread must wait first.
        while (held == nullptr || wanted == nullptr) sleep_ms(1);
        await_waiter();
        std::exit(*static_cast<int *>(code));
    }
}

struct releases_at_the_end_of_its_thread {
    ~releases_at_the_end_of_its_thread() { OK(zkl_release(held)); }
};

/// The number of open descriptors that a program started by this one inherits.
int inherited_by_system()
{
    const int status = std::system(("/proc/" + std::to_string(getpid()) + "/exe x descriptors").c_str());
    return WEXITSTATUS(status);
}

int inherited_by_popen()
{
    FILE *shell = popen(("/proc/" + std::to_string(getpid()) + "/exe x descriptors").c_str(), "r");
    CHECK(shell != nullptr);
    const int status = pclose(shell);
    return WEXITSTATUS(status);
}

[[noreturn]] void run(const std::string &how, char **argv)
{
    const int before = how == "popen" ? inherited_by_system() : 0;
    if (how == "exit-in-callback" || how == "atexit-in-callback") {
        static int code = how == "exit-in-callback" ? 4 : 14;
        if (code == 14) std::atexit(clean_up);
        std::thread waiter = begin(exit_from_a_callback, &code);
        waiter.join();
        for (;;) pause();
    }
    std::thread waiter = begin();
    if (how == "exit") std::exit(3);
    if (how == "exit-in-thread") std::thread([] { std::exit(5); }).join();
    if (how == "atexit") {
        waiter.detach();
        std::atexit(clean_up);
        std::exit(6);
    }
    if (how == "destructor") {
        waiter.detach();
        last.todo = clean_up_and_start_again;
        std::exit(7);
    }
    if (how == "_exit") _exit(8);
    if (how == "quick_exit") {
        waiter.detach();
        std::at_quick_exit(clean_up);
        std::quick_exit(9);
    }
    if (how == "abort") std::abort();
    if (how == "terminate") std::terminate();
    if (how == "throw") throw std::runtime_error("nobody catches it");
    if (how == "throw-in-thread") std::thread([] { throw std::runtime_error("nobody catches it"); }).join();
    if (how == "exec") {
        char count[] = "descriptors";
        char *const arguments[] = {argv[0], argv[1], count, nullptr};
        execv("/proc/self/exe", arguments);
    }
    if (how == "popen") {
        CHECK(inherited_by_system() == before && inherited_by_popen() == before);
        _exit(10);
    }
    if (how == "pthread_exit") {
        waiter.detach();
        std::thread([] { sleep_ms(50), clean_up(); }).detach();
        pthread_exit(nullptr);
    }
    if (how == "pthread_cancel") {
        // The cancellation takes effect after the call, so that the library is not interrupted.
        CHECK(pthread_cancel(waiter.native_handle()) == 0);
        sleep_ms(50);
        CHECK(waited == 1);
        OK(zkl_release(held));
        waiter.join();
        CHECK(zkl_is_held_in_process(wanted) == 1);
        std::exit(11);
    }
    if (how == "holder-ends") {
        // A hold outlives its thread. It ends when the lock is freed.
        OK(zkl_release(held));
        waiter.join();
        CHECK(waited == ZKL_OK && zkl_is_held_in_process(wanted) == 1 && zkl_is_held(wanted) == 0);
        CHECK(zkl_acquire_timeout(held, 0) == ZKL_E_TIMEOUT);
        zkl_lock_free(wanted);
        OK(zkl_acquire_timeout(held, 5000));
        std::exit(12);
    }
    if (how == "thread_local") {
        // The destructor of a thread-local object may call the library, because the library has no thread-local data
        // that could be gone.
        OK(zkl_release(held));
        waiter.join();
        zkl_lock_free(wanted);
        std::thread([] {
            static thread_local releases_at_the_end_of_its_thread end;
            static_cast<void>(&end);
            OK(zkl_acquire_timeout(held, 5000));
        }).join();
        CHECK(zkl_is_held_in_process(held) == 0);
        std::exit(13);
    }
    CHECK(how == "return");
    waiter.detach();
    throw 0; // to main, which returns
}

} // namespace

int main(int argc, char **argv)
{
    alarm(60);
    CHECK(argc == 3);
    servers = argv[1];
    const std::string how = argv[2];
    path = "/ends/" + how + std::to_string(getpid());
    if (how == "descriptors") return descriptors();
    if (how != "return") run(how, argv);
    try {
        run(how, argv);
    } catch (int code) {
        return code;
    }
}
