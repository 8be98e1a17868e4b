// What the C++ tests share. Each test is a program: argv[1] is the address of a ZooKeeper server, and it exits with 0 if all checks held. The
// first that does not ends it.
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

// It throws this status, with a message that has this in it.
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

// Waits until it holds.
#define AWAIT(condition)                                                                                                       \
    do {                                                                                                                       \
        const auto deadline_ = std::chrono::steady_clock::now() + std::chrono::seconds(20);                                    \
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

// Begins a test, which ends in time, however it goes wrong.
inline void begin(int argc, char **argv)
{
    CHECK(argc == 2);
    servers = argv[1];
    alarm(240);
}

// A path that no other test uses, nor this one in another process.
inline std::string fresh_path()
{
    static std::atomic<int> count{0};
    return "/cpp/" + std::to_string(getpid()) + "-" + std::to_string(count++);
}

inline std::chrono::milliseconds since(std::chrono::steady_clock::time_point start)
{
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
}

// How late things may be, which depends on what the program runs under.
inline std::chrono::milliseconds slack()
{
    const char *slack = std::getenv("SLACK_MS");
    return std::chrono::milliseconds(slack == nullptr ? 1000 : std::atol(slack));
}

// What a function gives on a thread of its own.
template <class Function>
auto elsewhere(Function function)
{
    decltype(function()) result{};
    std::thread([&] { result = function(); }).join();
    return result;
}

// A thread that holds a lock, from the constructor to release().
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
