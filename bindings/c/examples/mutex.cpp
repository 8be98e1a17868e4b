// Several processes share one mutex: mutex SERVERS PATH NAME ROUNDS
//
//     make build && cd bindings/c/examples
//     c++ -std=c++17 mutex.cpp -o mutex -I../../../include -L../../../target/release -lzklock -Wl,-rpath,$PWD/../../../target/release
//     ./mutex localhost:2181 /locks/demo alice 3 & ./mutex localhost:2181 /locks/demo bob 3

#include <zklock.hpp>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>

using namespace std::chrono_literals;

static void say(const std::string &name, const char *what, std::int64_t token)
{
    const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
    std::cout << name << ' ' << what << " TOKEN " << token << ' ' << now.count() << std::endl;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        std::cerr << "usage: " << argv[0] << " SERVERS PATH NAME ROUNDS\n";
        return 2;
    }
    const std::string name = argv[3];
    try {
        zkl::client client(argv[1]);
        zkl::mutex mutex(client, argv[2]);
        mutex.on_lost([&name] { std::cerr << name << ": the lock may be another's now\n"; });

        for (int round = 0; round < std::atoi(argv[4]); round++) {
            std::unique_lock guard(mutex, 30s);
            if (!guard) {
                std::cerr << name << ": another had it all the time\n";
                return 1;
            }
            // A real program passes its token to a store, which refuses late writes.
            const std::int64_t token = mutex.fencing_token();
            say(name, "acquired", token);
            std::this_thread::sleep_for(100ms);
            say(name, "released", token);
        }
    } catch (const zkl::error &error) {
        std::cerr << name << ": " << error.what() << '\n';
        return 1;
    }
    return 0;
}
