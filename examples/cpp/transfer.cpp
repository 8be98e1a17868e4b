// Moves an amount between two accounts while it holds the locks of both: transfer SERVERS FROM TO AMOUNT SECONDS
//
// An account is a file in the current directory. ../README.md explains how to build and run this program.

#include <zklock.hpp>

#include <chrono>
#include <exception>
#include <fstream>
#include <iostream>
#include <mutex>
#include <stdexcept>
#include <string>

static long balance(const std::string &account)
{
    std::ifstream file(account);
    long amount = 0;
    if (!(file >> amount)) throw std::runtime_error(account + ": cannot be read");
    return amount;
}

static void set_balance(const std::string &account, long amount)
{
    std::ofstream file(account);
    if (!(file << amount << std::endl)) throw std::runtime_error(account + ": cannot be written");
}

static const char *transfer(const std::string &from, const std::string &to, long amount)
{
    const long available = balance(from);
    if (available < amount) return "not enough";
    set_balance(from, available - amount);
    set_balance(to, balance(to) + amount);
    return "transferred";
}

int main(int argc, char **argv)
try {
    if (argc != 6) {
        std::cerr << "usage: transfer SERVERS FROM TO AMOUNT SECONDS\n";
        return 2;
    }
    const std::string from = argv[2], to = argv[3];
    const std::chrono::seconds deadline(std::stol(argv[5]));
    zkl::client client(argv[1]);
    zkl::mutex source(client, "/accounts/" + from), target(client, "/accounts/" + to);
    zkl::multi both(source, target);

    const std::unique_lock guard(both, deadline); // acquires both locks within the deadline, or none
    std::cout << (guard ? transfer(from, to, std::stol(argv[4])) : "not in time") << '\n';
    return 0;
} catch (const std::exception &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
