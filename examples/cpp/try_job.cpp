// Runs a job unless another process is running it: try_job SERVERS PATH
//
// The job ends when a line of input arrives. ../README.md explains how to build and run this program.

#include <zklock.hpp>

#include <iostream>
#include <mutex>

static void job()
{
    std::cout << "running" << std::endl;
    std::cin.get();
}

int main(int argc, char **argv)
try {
    if (argc != 3) {
        std::cerr << "usage: try_job SERVERS PATH\n";
        return 2;
    }
    zkl::client client(argv[1]);
    zkl::mutex lock(client, argv[2]);

    std::unique_lock guard(lock, std::try_to_lock);
    if (!guard) {
        std::cout << "skipped: another process runs it\n";
        return 0;
    }
    job();
    guard.release(); // the guard must not unlock; lock.release() reports a loss
    if (const zkl::status ended = lock.release(); ended != zkl::status::ok) {
        std::cerr << "release: " << make_error_code(ended).message() << '\n';
        return 1;
    }
    std::cout << "done\n";
    return 0;
} catch (const zkl::error &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
