// One of two versions of zklock.hpp in one process. VERSION names the version and its functions. The other version has
// larger classes. With MAIN, this file is the program that contains both.
#include <zklock.hpp>

#include <atomic>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#define JOINED(one, two) one##_##two
#define NAMED(version, name) JOINED(version, name)
#define FUNCTION(name) __attribute__((visibility("default"))) NAMED(VERSION, name)

#define CHECK(condition)                                                                                                       \
    do {                                                                                                                       \
        if (!(condition)) {                                                                                                    \
            std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                                 \
            _exit(1);                                                                                                          \
        }                                                                                                                      \
    } while (0)

#define DECLARED(version)                                                                                                      \
    void JOINED(version, use)(const char *servers);                                                                            \
    void JOINED(version, fail)();                                                                                              \
    bool JOINED(version, catches)(void (*failing)());

DECLARED(one)
DECLARED(two)

#if defined(MAIN)

int main(int argc, char **argv)
{
    alarm(120);
    CHECK(argc == 2);
    for (int round = 0; round < 2; round++) {
        std::thread other([&] { one_use(argv[1]); });
        two_use(argv[1]);
        other.join();
    }
    CHECK(one_catches(one_fail) && one_catches(two_fail) && two_catches(one_fail) && two_catches(two_fail));
    return 0;
}

#else

static void await(const std::atomic<int> &count, int expected)
{
    while (count < expected) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void FUNCTION(use)(const char *servers)
{
    static std::atomic<int> count{0};
    const std::string name = __func__;
    const auto path = [&name] { return "/cpp/versions-" + std::to_string(getpid()) + "-" + name + std::to_string(count++); };
    std::atomic<int> events{0}, all{0};
    zkl::client client(servers, zkl::config().session_timeout(std::chrono::seconds(10)));
    client.on_event([&] { all++; });
    zkl::mutex one(client, path()), two(client, path());
    zkl::shared_mutex shared(client, path());
    zkl::semaphore semaphore(client, path(), 3);
    zkl::multi both(one, two);
    one.on_event([&](const zkl::event &event) { events += event.lock_state() == zkl::lock_state::held; });
    one.on_lost([] { CHECK(false); });
    one.set_revocable([] { CHECK(false); });
    {
        const std::lock_guard guard(both);
        CHECK(one.is_held() && two.is_held() && one.participants().size() == 1);
        await(events, 1);
    }
    zkl::mutex moved(std::move(one));
    {
        const std::lock_guard guard(moved);
        await(events, 2);
    }
    zkl::hold leases = semaphore.acquire(2);
    leases.on_lost([] {});
    CHECK(leases.is_held() && semaphore.try_acquire(1).has_value() && leases.release() == zkl::status::ok);
    zkl::operation operation = shared.reader().start(zkl::owner{1});
    CHECK(operation.wait() == zkl::status::ok && operation.take_hold().release() == zkl::status::ok);
    await(all, 4);
}

void FUNCTION(fail)()
{
    static_cast<void>(zkl::client(""));
}

bool FUNCTION(catches)(void (*failing)())
{
    int caught = 0;
    try {
        failing();
    } catch (const zkl::error &error) {
        caught += error.status() == zkl::status::invalid && error.code() == zkl::status::invalid && error.code().category() == zkl::category();
    }
    try {
        failing();
    } catch (const std::system_error &error) {
        caught += error.code() == std::errc::invalid_argument && std::string(error.what()).find("invalid argument") != std::string::npos;
    }
    return caught == 2;
}

#endif
