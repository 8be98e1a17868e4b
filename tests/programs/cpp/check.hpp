// Helpers of the C++ tests. Each test is a program: argv[1] is the address of a ZooKeeper server. The program exits
// with 0 if all checks hold. The first check that fails ends the program.
#ifndef CHECK_HPP
#define CHECK_HPP

#include <zklock.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include <unistd.h>

#define CHECK(condition)                                                                                                       \
    do {                                                                                                                       \
        if (!(condition)) check::fail(__FILE__, __LINE__, #condition);                                                         \
    } while (0)

// Checks that the expression throws this status with a message that contains this text.
#define THROWS(expected, text, ...)                                                                                            \
    do {                                                                                                                       \
        try {                                                                                                                  \
            static_cast<void>(__VA_ARGS__);                                                                                    \
            check::fail(__FILE__, __LINE__, #__VA_ARGS__ " throws");                                                           \
        } catch (const zkl::error &error_) {                                                                                   \
            if (error_.status() != zkl::status::expected || std::string(error_.what()).find(text) == std::string::npos) {      \
                check::fail(__FILE__, __LINE__, (#__VA_ARGS__ " throws " #expected ", not: " + std::string(error_.what())).c_str()); \
            }                                                                                                                  \
        }                                                                                                                      \
    } while (0)

// Waits until the condition holds.
#define AWAIT(condition)                                                                                                       \
    do {                                                                                                                       \
        const auto deadline_ = std::chrono::steady_clock::now() + std::chrono::minutes(1);                                     \
        while (!(condition)) {                                                                                                 \
            if (std::chrono::steady_clock::now() >= deadline_) check::fail(__FILE__, __LINE__, #condition);                    \
            std::this_thread::sleep_for(std::chrono::milliseconds(2));                                                         \
        }                                                                                                                      \
    } while (0)

#define RUN(test)                                                                                                              \
    do {                                                                                                                       \
        std::fprintf(stderr, "%s\n", #test);                                                                                   \
        test();                                                                                                                \
    } while (0)

namespace check {

[[noreturn]] inline void fail(const char *file, int line, const char *what)
{
    std::fprintf(stderr, "%s:%d: %s does not hold; last error: \"%s\"\n", file, line, what, zkl_last_error_message());
    _exit(1);
}

inline std::string servers;

// Begins a test. A timer ends the test if it hangs.
inline void begin(int argc, char **argv)
{
    CHECK(argc == 2);
    servers = argv[1];
    alarm(240);
}

// Returns a path that no other test and no other process uses. All these paths have the same length.
inline std::string fresh_path()
{
    static std::atomic<int> count{0};
    char path[32];
    std::snprintf(path, sizeof path, "/cpp/%07ld-%04d", static_cast<long>(getpid()), count++);
    return path;
}

inline std::chrono::milliseconds since(std::chrono::steady_clock::time_point start)
{
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
}

// The tolerance for late returns: slack() of tests/support. It depends on the tool that the program runs under.
inline std::chrono::milliseconds slack()
{
    const char *slack = std::getenv("SLACK_MS");
    return std::chrono::milliseconds(slack == nullptr ? 1000 : std::atol(slack));
}

// Returns the result of a function on a new thread.
template <class Function>
auto on_new_thread(Function function)
{
    decltype(function()) result{};
    std::thread([&] { result = function(); }).join();
    return result;
}

// A thread that holds a lock from the constructor until release().
template <class Lock>
class holder {
public:
    explicit holder(Lock &lock)
        : thread_([this, &lock] {
              lock.lock();
              stage_ = 1;
              while (stage_ != 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
              lock.unlock();
          })
    {
        while (stage_ != 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }

    void release()
    {
        stage_ = 2;
        thread_.join();
    }

private:
    std::atomic<int> stage_{0};
    std::thread thread_;
};

} // namespace check

#endif
