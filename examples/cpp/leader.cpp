// Works as the leader until the lock is lost, then stops and acquires it again: leader SERVERS PATH NAME
//
// ../README.md explains how to build and run this program.

#include <zklock.hpp>

#include <chrono>
#include <iostream>
#include <mutex>
#include <string>

using namespace std::chrono_literals;

int main(int argc, char **argv)
try {
    if (argc != 4) {
        std::cerr << "usage: leader SERVERS PATH NAME\n";
        return 2;
    }
    const std::string name = argv[3];
    zkl::client client(argv[1]);
    zkl::mutex lock(client, argv[2]);

    for (;;) {
        const std::lock_guard guard(lock); // also waits while no server answers
        std::cout << name << " leads" << std::endl;
        while (!lock.wait_lost(200ms)) {
            std::cout << name << " works" << std::endl; // a step must be short compared with the session timeout
        }
        std::cout << name << " stops" << std::endl;
    } // the guard releases the lost hold
} catch (const zkl::error &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
