// Errors as std::error_code. This program is also compiled without exceptions and without run-time type information.
#include "check.hpp"

#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

using namespace std::chrono_literals;
using check::fresh_path;
using zkl::status;

namespace {

zkl::client connected()
{
    std::error_code ec;
    zkl::client client(check::servers, ec);
    CHECK(!ec);
    return client;
}

// Whether another thread can acquire the lock immediately.
bool is_free(zkl::lockable &lock)
{
    return check::on_new_thread([&] {
        std::error_code ec;
        const bool got = lock.try_lock(ec);
        CHECK(!ec);
        if (got) lock.unlock(ec);
        CHECK(!ec);
        return got;
    });
}

// A failed call sets the code, and a successful call clears it.
void failures_set_the_code_and_successes_clear_it()
{
    std::error_code ec = make_error_code(std::errc::io_error);
    const zkl::client client(check::servers, ec);
    CHECK(!ec && client.state(ec) == zkl::state::connected && !ec && client.session_id(ec) != 0);
    zkl::config config(ec);
    const zkl::client nobody("127.0.0.1:1", config.connect_timeout(50ms, ec), ec);
    CHECK(ec == status::connection && ec.category() == zkl::category() && ec == std::errc::not_connected);
    CHECK(nobody.native_handle() == nullptr && nobody.state(ec) == zkl::state::closed && ec == status::handle);
    CHECK(config.set("no.such.option", "1", ec).set("lease.margin", "100", ec).native_handle() != nullptr && !ec);
    config.session_timeout(-1s, ec);
    CHECK(ec == status::invalid);
    config.load("/", ec);
    CHECK(ec == status::invalid);
    zkl::check(ZKL_E_LOST, ec);
    CHECK(ec == status::lost && zkl::check(7, ec) == 7 && !ec);
}

// If a constructor fails, it sets the code, and the object has no handle.
void a_lock_that_cannot_be_made_has_no_handle()
{
    zkl::client client = connected();
    std::error_code ec;
    zkl::mutex relative(client, "no/slash", ec);
    CHECK(ec == status::invalid && relative.native_handle() == nullptr);
    const zkl::semaphore_mutex nul(client, std::string_view("/a\0b", 4), ec);
    CHECK(ec == status::invalid && nul.native_handle() == nullptr);
    zkl::shared_mutex shared(client, "", ec);
    CHECK(ec == status::invalid && shared.reader().native_handle() == nullptr);
    const zkl::multi multi({&relative, &shared}, ec);
    CHECK(ec == status::handle && multi.native_handle() == nullptr);
    zkl::semaphore semaphore(client, fresh_path(), 0, ec);
    CHECK(ec == status::invalid && semaphore.native_handle() == nullptr);
    relative.lock(ec);
    CHECK(ec == status::handle && !relative.try_lock(ec) && ec == status::handle && !relative.is_held());
    CHECK(!semaphore.acquire(1, ec) && ec == status::handle);
    relative.on_lost([] {}, ec);
    CHECK(ec == status::handle);
    relative.set_revocable([] {}, ec);
    CHECK(ec == status::handle);
    CHECK(relative.participants(ec).empty() && ec == status::handle && relative.waiting(ec).empty() && ec == status::handle);
    zkl::operation none = relative.start(ec);
    CHECK(ec == status::handle && none.native_handle() == nullptr && none.fd(ec) < 0 && ec == status::handle);
    CHECK(none.wait(ec) == status::handle && ec == status::handle && !none.result(ec) && ec == status::handle);
}

// Failed lock and query functions set the code that names the cause.
void locking_reports_why_it_failed()
{
    zkl::client client = connected();
    std::error_code ec;
    zkl::mutex mutex(client, fresh_path(), ec);
    CHECK(!ec && mutex.fencing_token(ec) == 0 && ec == status::not_owner);
    CHECK(mutex.remaining(ec) == 0ms && ec == status::not_owner && mutex.node_path(ec).empty() && ec == status::not_owner);
    mutex.unlock(ec);
    CHECK(ec == status::not_owner && ec == std::errc::operation_not_permitted);
    mutex.lock(ec);
    CHECK(!ec && mutex.fencing_token(ec) > 0 && !ec && mutex.state(ec) == zkl::lock_state::held && !mutex.node_path(ec).empty());
    {
        const std::lock_guard guard(mutex, std::adopt_lock);
        // Another thread holds the lock. This is not an error.
        CHECK(check::on_new_thread([&] {
            std::error_code code = make_error_code(status::lost);
            return !mutex.try_lock(code) && !code && !mutex.try_lock_for(20ms, code) && !code &&
                   !mutex.try_lock_until(std::chrono::steady_clock::now() + 20ms, code) && !code && !mutex.try_acquire_for(0s, zkl::owner{1}, code) && !code;
        }));
        CHECK(!mutex.wait_lost(1ms, ec) && !ec);
    }
    CHECK(is_free(mutex));
    zkl::hold held = mutex.acquire(zkl::owner{5}, ec);
    CHECK(!ec && mutex.fencing_token(ec) == 0 && ec == status::not_owner && held.fencing_token(ec) > 0 && !ec);
    CHECK(held.release() == status::ok && !mutex.wait_lost(1ms, ec) && ec == status::not_owner);

    zkl::semaphore semaphore(client, fresh_path(), 2, ec);
    zkl::hold two = semaphore.acquire(2, ec);
    CHECK(!ec && two && two.quantity() == 2 && !semaphore.try_acquire(1, ec) && !ec);
    zkl::operation operation = semaphore.start(1, ec);
    CHECK(!ec && !operation.result(ec) && !ec && !operation.take_hold(ec) && ec == status::pending && !operation.wait_for(1ms, ec) && !ec);
    CHECK(two.release() == status::ok && operation.wait(ec) == status::ok && operation.take_hold(ec).is_held() && !ec);
    CHECK(!semaphore.acquire(3, ec) && ec == status::invalid);

    // After an error, the call does not wait until its deadline.
    client.close();
    const auto start = std::chrono::steady_clock::now();
    CHECK(!mutex.try_lock_until(start + 1h, ec) && ec == status::closed && check::since(start) < 1min);
    CHECK(!semaphore.try_acquire_until(start + 1h, 1, ec) && ec == status::closed);
}

// Functions that set a callback report their failure in the code.
void callback_registration_reports_error_codes()
{
    zkl::client client = connected();
    std::error_code ec = make_error_code(status::lost);
    zkl::mutex mutex(client, fresh_path(), ec);
    std::atomic<int> events{0}, all{0};
    mutex.on_event([&](const zkl::event &event) { events += event.lock_state() == zkl::lock_state::held; }, ec);
    CHECK(!ec);
    client.on_event([&] { all++; }, [](std::exception_ptr) {}, ec);
    CHECK(!ec);
    mutex.lock(ec);
    AWAIT(events == 1 && all >= 1);
    mutex.on_event(nullptr, ec);
    CHECK(!ec);
    mutex.unlock(ec);
    CHECK(!ec && events == 1);
    zkl::set_log_callback(static_cast<zkl::log_level>(9), [](const zkl::log_line &) {}, ec);
    CHECK(ec == status::invalid);
}

} // namespace

int main(int argc, char **argv)
{
    check::begin(argc, argv);
    RUN(failures_set_the_code_and_successes_clear_it);
    RUN(a_lock_that_cannot_be_made_has_no_handle);
    RUN(locking_reports_why_it_failed);
    RUN(callback_registration_reports_error_codes);
    return 0;
}
