// Limits a pool to three users at a time, and waits for its turn: pool SERVERS PATH SECONDS
//
// A use ends when a line of input arrives. ../README.md explains how to build and run this program.

#include <zklock.hpp>

#include <chrono>
#include <iostream>
#include <optional>
#include <string>

static void use()
{
    std::cout << "using" << std::endl;
    std::cin.get();
}

int main(int argc, char **argv)
try {
    if (argc != 4) {
        std::cerr << "usage: pool SERVERS PATH SECONDS\n";
        return 2;
    }
    zkl::client client(argv[1]);
    zkl::semaphore pool(client, argv[2], 3);

    std::optional<zkl::hold> lease = pool.try_acquire_for(std::chrono::seconds(std::stol(argv[3])));
    if (!lease) {
        std::cout << "full\n";
        return 0;
    }
    use();
    if (const zkl::status ended = lease->release(); ended != zkl::status::ok) {
        std::cerr << "release: " << make_error_code(ended).message() << '\n';
        return 1;
    }
    std::cout << "returned\n";
    return 0;
} catch (const zkl::error &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
