// Writes to a store that refuses writes from a former holder of the lock: fenced_write SERVERS PATH FILE
//
// Each line of input is a value to write. ../README.md explains how to build and run this program.

#include <zklock.hpp>

#include <chrono>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <mutex>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

using namespace std::chrono_literals;

// The store: a file with the largest token so far, and a value. The lock on the file makes the comparison and the write one step, like
// a transaction in a database.
class store {
public:
    explicit store(const std::string &path) : path_(path), lock_(::open(path.c_str(), O_RDWR | O_CREAT, 0666))
    {
        if (lock_ < 0) throw std::system_error(errno, std::generic_category(), path);
    }
    store(const store &) = delete;
    store &operator=(const store &) = delete;
    ~store() { ::close(lock_); }

    // Returns false and writes nothing if a later holder has already written.
    bool put(std::int64_t token, const std::string &value)
    {
        if (::flock(lock_, LOCK_EX) != 0) throw std::system_error(errno, std::generic_category(), path_);
        std::int64_t largest = 0;
        std::ifstream(path_) >> largest;
        const bool is_new = token >= largest;
        if (is_new && !(std::ofstream(path_) << token << ' ' << value << std::endl)) {
            throw std::system_error(errno, std::generic_category(), path_);
        }
        ::flock(lock_, LOCK_UN);
        return is_new;
    }

private:
    const std::string path_;
    const int lock_;
};

int main(int argc, char **argv)
try {
    if (argc != 4) {
        std::cerr << "usage: fenced_write SERVERS PATH FILE\n";
        return 2;
    }
    store values(argv[3]);
    zkl::client client(argv[1]);
    zkl::mutex lock(client, argv[2]);
    std::unique_lock guard(lock, 30s);
    if (!guard) {
        std::cerr << "another process holds the lock\n";
        return 1;
    }

    const std::int64_t token = lock.fencing_token();
    std::cout << "holds with token " << token << std::endl;
    for (std::string value; std::getline(std::cin, value);) {
        std::cout << (values.put(token, value) ? "written" : "refused") << std::endl;
    }
    guard.release(); // the guard must not unlock; lock.release() reports a loss
    const zkl::status ended = lock.release();
    if (ended != zkl::status::ok && ended != zkl::status::lost) throw zkl::error(ended, "release");
    std::cout << (ended == zkl::status::ok ? "released" : "lost") << std::endl;
    return 0;
} catch (const std::exception &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
