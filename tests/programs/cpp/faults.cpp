// C++ programs on a server with injected faults: callbacks report losses. The tests also check what callbacks may do,
// and when they end.
#include "check.hpp"

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <vector>

#include <poll.h>
#include <sys/wait.h>

#include <zklock_standalone.h>

using namespace std::chrono_literals;
using check::fresh_path;

namespace {

zkl_standalone *server;

void expire(const zkl::client &client)
{
    CHECK(zkl_standalone_expire(server, client.session_id()) == ZKL_OK);
}

// Whether the event reports that a safe hold has become unsafe.
bool becomes_unsafe(const zkl::event &event)
{
    const auto is_safe = [](zkl::lock_state state) { return state != zkl::lock_state::uncertain && state != zkl::lock_state::lost; };
    return is_safe(event.previous_lock_state().value()) && !is_safe(event.lock_state().value());
}

// The session and its lease are longer than the pauses of a program under valgrind.
zkl::config short_session()
{
    zkl::config config;
    config.session_timeout(3s).lease_margin(750ms);
    return config;
}

// If a session expires, on_lost of each held lock is called, with the event of that lock.
void loss_calls_the_locks_callback()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path()), bystander(client, fresh_path());
    std::atomic<int> lost{0}, others{0};
    std::atomic<std::int64_t> token{0};
    mutex.on_lost([&](const zkl::event &event) {
        CHECK(event.kind() == zkl::event_kind::lock && becomes_unsafe(event) && event.lock() == mutex.native_handle());
        CHECK(event.path().find("/cpp/") == 0 && event.fencing_pass() == 0 && event.native_handle()->token == event.token());
        CHECK(!mutex.is_held_in_process());
        token = event.token();
        lost++;
    });
    bystander.on_lost([&] { others++; });
    {
        std::unique_lock guard(mutex);
        const std::int64_t held = mutex.fencing_token();
        expire(client);
        AWAIT(lost == 1 && token == held && mutex.state() == zkl::lock_state::lost);
        CHECK(!mutex.is_held() && guard.owns_lock());
        THROWS(lost, "", mutex.fencing_token());
        THROWS(lost, "", mutex.lock());
        THROWS(lost, "", static_cast<void>(mutex.try_lock()));
        // The guard ignores the loss when it unlocks.
    }
    CHECK(mutex.state() == zkl::lock_state::free);
    // With a callback.
    mutex.lock();
    expire(client);
    AWAIT(lost == 2 && mutex.state() == zkl::lock_state::lost);
    CHECK(mutex.release() == zkl::status::lost && mutex.release() == zkl::status::not_owner);
    // Without the callback.
    mutex.on_lost(nullptr);
    mutex.lock();
    expire(client);
    AWAIT(mutex.state() == zkl::lock_state::lost);
    mutex.unlock();
    mutex.lock();
    mutex.unlock();
    CHECK(lost == 2 && others == 0);
}

// The lease ends before the client knows whether the session has expired.
void a_lock_is_uncertain_before_it_is_lost()
{
    zkl::client client(check::servers, short_session());
    zkl::mutex mutex(client, fresh_path());
    std::mutex guard;
    std::vector<zkl::lock_state> states, lapses;
    mutex.on_event([&](const zkl::event &event) {
        const std::lock_guard here(guard);
        states.push_back(event.lock_state().value());
    });
    mutex.on_lost([&](const zkl::event &event) {
        const std::lock_guard here(guard);
        lapses.push_back(event.lock_state().value());
    });
    mutex.lock();
    const std::int64_t session = client.session_id();
    CHECK(zkl_standalone_freeze(server, session) == ZKL_OK);
    AWAIT(mutex.state() == zkl::lock_state::uncertain);
    CHECK(mutex.remaining() == 0ms && !mutex.is_held());
    CHECK(zkl_standalone_expire(server, session) == ZKL_OK && zkl_standalone_thaw(server, session) == ZKL_OK);
    AWAIT(mutex.state() == zkl::lock_state::lost);
    CHECK(mutex.release() == zkl::status::lost);
    client.close();
    const std::lock_guard here(guard);
    using zkl::lock_state;
    // Only one loss was reported.
    CHECK(lapses == std::vector{lock_state::uncertain});
    const std::vector told{lock_state::held, lock_state::suspended, lock_state::uncertain, lock_state::lost, lock_state::free};
    // The release of a lost hold may or may not cause an event.
    CHECK(states == told || states == std::vector(told.begin(), told.end() - 1));
}

// on_event of a client receives the events of the session and of all holds.
void session_and_hold_events_are_delivered()
{
    std::mutex guard;
    std::vector<std::string> first, later;
    const auto write = [&guard](std::vector<std::string> &into) {
        return [&guard, &into](const zkl::event &event) {
            const std::lock_guard here(guard);
            if (event.kind() == zkl::event_kind::lock) {
                into.push_back("hold " + std::to_string(static_cast<int>(*event.lock_state())));
            } else {
                CHECK(event.lock() == nullptr && event.path().empty() && event.token() == 0);
                CHECK(event.previous_client_state() != event.client_state() && !event.lock_state() && !event.previous_lock_state());
                into.push_back("client " + std::to_string(static_cast<int>(*event.client_state())));
            }
        };
    };
    zkl::config config;
    config.on_event(write(first));
    zkl::client client(check::servers, config);
    config.on_event(nullptr);
    zkl::semaphore semaphore(client, fresh_path(), 1);
    CHECK(semaphore.acquire().release() == zkl::status::ok);
    AWAIT((std::lock_guard(guard), first.size() == 3));
    client.on_event(write(later));
    {
        zkl::mutex mutex(client, fresh_path());
        const std::lock_guard lock(mutex);
    }
    zkl::mutex mutex(client, fresh_path());
    mutex.lock();
    client.close();
    const std::lock_guard here(guard);
    const std::vector<std::string> all{"client 1", "hold 11", "hold 10", "hold 11", "hold 10", "hold 11", "hold 10", "client 4"};
    CHECK(first == all && later == std::vector(all.begin() + 3, all.end()));
}

// If a session expires, on_lost of its leases is called, also after a move.
void loss_calls_the_leases_callback()
{
    zkl::client client(check::servers);
    zkl::semaphore semaphore(client, fresh_path(), 3);
    std::atomic<int> one{0}, two{0};
    zkl::hold first = semaphore.acquire(), second = semaphore.acquire(2);
    first.on_lost([&] { one++; });
    second.on_lost([&](const zkl::event &event) {
        CHECK(event.lock() == nullptr && !event.path().empty() && event.token() > 0 && becomes_unsafe(event));
        two++;
    });
    const zkl::hold moved = std::move(second);
    expire(client);
    AWAIT(one == 1 && two == 1 && moved.state() == zkl::lock_state::lost);
    CHECK(first.release() == zkl::status::lost);
    CHECK(moved.fencing_token() > 0 && moved.remaining() == 0ms);
    THROWS(lost, "", moved.node_path());
    // A callback that is set after the loss is called immediately, and not again after the event.
    zkl::hold late = semaphore.acquire();
    std::atomic<bool> is_over{false};
    client.on_event([&](const zkl::event &event) {
        if (event.kind() == zkl::event_kind::lock && event.lock_state() == zkl::lock_state::lost) is_over = true;
    });
    expire(client);
    AWAIT(is_over && late.state() == zkl::lock_state::lost);
    client.on_event(nullptr);
    std::atomic<int> told{0};
    late.on_lost([&](const zkl::event &event) {
        CHECK(event.lock_state() == zkl::lock_state::lost);
        told++;
    });
    CHECK(told == 1 && late.release() == zkl::status::lost);
    // Leases that have been released cannot be lost.
    zkl::hold back = semaphore.acquire();
    back.on_lost([&] { told++; });
    CHECK(back.release() == zkl::status::ok);
    expire(client);
    AWAIT(semaphore.try_acquire_for(20s));
    CHECK(told == 1);
}

// wait_lost returns true at a loss and false at its time limit.
void a_thread_waits_for_a_loss()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path());
    zkl::semaphore semaphore(client, fresh_path(), 1);
    THROWS(not_owner, "", mutex.wait_lost(1h));
    const std::lock_guard guard(mutex);
    const zkl::hold lease = semaphore.acquire();
    const auto start = std::chrono::steady_clock::now();
    CHECK(!mutex.wait_lost(30ms) && check::since(start) >= 30ms && !mutex.wait_lost(0s) && !lease.wait_lost(1ms));
    CHECK(mutex.try_lock_for(0s) && mutex.release() == zkl::status::ok);
    zkl::mutex own(client, fresh_path());
    zkl::hold owned = own.acquire(zkl::owner{1});
    std::atomic<int> lost{0};
    std::thread of_owner([&] { lost += owned.wait_lost(1h); }), of_lease([&] { lost += lease.wait_lost(1h); });
    expire(client);
    CHECK(mutex.wait_lost(20s));
    of_owner.join();
    of_lease.join();
    CHECK(lost == 2 && owned.release() == zkl::status::lost);
}

// A closed client reports a loss, so that the program can stop its work before another client is granted the lock.
void a_client_that_is_closed_is_a_loss()
{
    zkl::client client(check::servers);
    zkl::mutex held(client, fresh_path()), free(client, fresh_path());
    zkl::semaphore semaphore(client, fresh_path(), 1);
    zkl::hold lease = semaphore.acquire();
    std::atomic<int> lost{0}, other{0}, leases{0};
    held.on_lost([&](const zkl::event &event) { lost += event.lock_state() == zkl::lock_state::free; });
    free.on_lost([&] { other++; });
    lease.on_lost([&] { leases++; });
    held.lock();
    client.close();
    CHECK(lost == 1 && leases == 1 && other == 0);
}

// If one member lock is lost, on_lost of the multi-lock is called with the event of that lock.
void one_lock_of_several_is_lost()
{
    zkl::client client(check::servers), another(check::servers);
    zkl::mutex one(client, fresh_path());
    zkl::shared_mutex two(another, fresh_path());
    zkl::multi both(one, two.reader());
    std::atomic<int> lost{0}, reader{0}, events{0};
    both.on_lost([&](const zkl::event &event) {
        CHECK(event.lock() == two.reader().native_handle());
        lost++;
    });
    both.on_event([&] { events++; });
    two.reader().on_lost([&] { reader++; });
    both.lock();
    expire(another);
    AWAIT(lost == 1 && reader == 1 && both.state() == zkl::lock_state::lost);
    CHECK(!both.is_held() && one.is_held() && both.release() == zkl::status::lost && !one.is_held());
    AWAIT(events >= 4);
}

// An exception in a callback reaches the exception handler of this callback and no other code.
void exception_in_a_callback_does_not_propagate()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path());
    std::atomic<int> calls{0}, caught{0}, dropped{0};
    mutex.on_event([&] {
        calls++;
        throw std::runtime_error("from a callback");
    }, [&](std::exception_ptr exception) {
        try {
            std::rethrow_exception(std::move(exception));
        } catch (const std::runtime_error &error) {
            CHECK(std::string(error.what()) == "from a callback");
            caught++;
        }
        throw 1;
    });
    client.on_event([&] {
        dropped++;
        throw 2;
    });
    mutex.lock();
    mutex.unlock();
    AWAIT(calls == 2 && caught == 2 && dropped == 2);
}

// In a callback, functions that wait for others throw DEADLOCK.
void a_callback_may_not_wait_for_others()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path()), busy(client, fresh_path());
    zkl::semaphore semaphore(client, fresh_path(), 1);
    check::holder holder(busy);
    std::atomic<bool> is_done{false};
    mutex.on_event([&] {
        if (is_done) return;
        THROWS(deadlock, "", busy.lock());
        THROWS(deadlock, "", busy.try_lock_for(1s));
        THROWS(deadlock, "", semaphore.acquire());
        zkl::operation operation = busy.start();
        THROWS(deadlock, "", operation.wait());
        THROWS(deadlock, "", operation.get());
        CHECK(!operation.result() && !operation.wait_for(0s));
        CHECK(!busy.try_lock() && semaphore.try_acquire());
        is_done = true;
    });
    mutex.lock();
    AWAIT(is_done);
    mutex.unlock();
    holder.release();
}

// After the destructor of an object has returned, none of its callbacks runs or is called later.
void destructors_wait_for_callbacks()
{
    zkl::client client(check::servers);
    for (int how = 0; how < 4; how++) {
        auto mutex = std::make_unique<zkl::mutex>(client, fresh_path());
        zkl::semaphore semaphore(client, fresh_path(), 1);
        zkl::hold leases = semaphore.acquire();
        std::atomic<bool> is_in{false}, may_leave{false}, is_over{false};
        const auto callback = [&] {
            is_in = true;
            while (!may_leave) std::this_thread::sleep_for(1ms);
            is_over = true;
        };
        if (how == 3) {
            leases.on_lost(callback);
        } else {
            mutex->on_lost(callback);
            mutex->lock();
        }
        expire(client);
        AWAIT(is_in);
        std::thread releaser([&] {
            std::this_thread::sleep_for(20ms);
            may_leave = true;
        });
        switch (how) {
        case 0: mutex.reset(); break;
        case 1: mutex->on_lost(nullptr); break;
        case 2: mutex->on_lost([] {}); break;
        default: static_cast<void>(leases.release());
        }
        CHECK(is_over);
        releaser.join();
    }
}

// A callback that another callback removes is not called, even if the event is already being delivered to both.
void a_callback_that_another_takes_back_is_not_called()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path()), next(client, fresh_path());
    std::atomic<int> calls{0}, others{0};
    client.on_event([&] {
        mutex.on_event(nullptr);
        calls++;
    });
    mutex.on_event([&] { others++; });
    mutex.lock();
    mutex.unlock();
    AWAIT(calls == 2);
    CHECK(others == 0);
}

// A callback may destroy its own lock and client.
void a_callback_may_destroy_its_lock_and_its_client()
{
    auto client = std::make_unique<zkl::client>(check::servers);
    auto mutex = std::make_unique<zkl::mutex>(*client, fresh_path());
    std::atomic<bool> is_over{false};
    mutex->on_lost([&] {
        mutex.reset();
        client.reset();
        is_over = true;
    });
    mutex->lock();
    expire(*client);
    AWAIT(is_over);
    CHECK(mutex == nullptr && client == nullptr);
}

// The leases were lost before, so the callback runs while it is set.
void a_callback_may_destroy_its_leases()
{
    zkl::client client(check::servers);
    zkl::semaphore semaphore(client, fresh_path(), 1);
    auto leases = std::make_unique<zkl::hold>(semaphore.acquire());
    std::atomic<int> lost{0}, calls{0};
    leases->on_lost([&] { lost++; });
    expire(client);
    AWAIT(lost == 1 && leases->state() == zkl::lock_state::lost);
    auto owned = std::make_shared<int>(0);
    leases->on_lost([&, owned] {
        leases.reset();
        calls++;
        CHECK(owned.use_count() == 2);
    });
    CHECK(leases == nullptr && calls == 1);
    AWAIT(owned.use_count() == 1);
}

// The objects that a callback owns are destroyed once.
void callbacks_are_destroyed()
{
    const auto counted = std::make_shared<int>(0);
    const auto callback = [counted] {};
    {
        zkl::config config;
        config.on_event(callback);
        config.on_event(callback);
        zkl::client client(check::servers, config);
        zkl::mutex mutex(client, fresh_path());
        zkl::semaphore semaphore(client, fresh_path(), 1);
        zkl::hold leases = semaphore.acquire();
        for (int i = 0; i < 2; i++) {
            client.on_event(callback);
            mutex.on_event(callback);
            mutex.on_lost(callback);
            mutex.set_revocable(callback);
            semaphore.set_revocable(callback);
            leases.on_lost(callback);
        }
        // A callback that was replaced may still be on its way to another thread.
        AWAIT(counted.use_count() == 2 + 7);
        mutex.on_event(nullptr);
        mutex.on_lost(nullptr);
        mutex.set_revocable(nullptr);
        AWAIT(counted.use_count() == 2 + 4);
    }
    AWAIT(counted.use_count() == 2);
}

// A revocation request calls the callback of the lock or of the semaphore.
void revocation_calls_the_holder()
{
    zkl::client client(check::servers), another(check::servers);
    zkl::mutex mutex(client, fresh_path());
    zkl::semaphore semaphore(client, fresh_path(), 1);
    std::atomic<int> asked{0}, leases_asked{0}, caught{0};
    mutex.set_revocable([&] { asked = 100; });
    mutex.set_revocable([&] {
        asked++;
        throw 1;
    }, [&](const std::exception_ptr &) { caught++; });
    semaphore.set_revocable([&] { leases_asked++; });
    const std::lock_guard guard(mutex);
    const zkl::hold lease = semaphore.acquire();
    another.revoke(mutex.participants()[0].node_path);
    AWAIT(asked == 1 && caught == 1);
    another.revoke(semaphore.participants()[0].node_path);
    AWAIT(leases_asked == 1);
    CHECK(mutex.is_held() && lease.is_held());
    mutex.set_revocable(nullptr);
    semaphore.set_revocable(nullptr);
    another.revoke(mutex.node_path());
    another.revoke("/cpp/there-is-none");
    CHECK(asked == 1 && leases_asked == 1);
}

// With poll_events, callbacks run on the thread that dispatches.
void a_program_polls()
{
    zkl::client client(check::servers, zkl::config().poll_events());
    zkl::mutex mutex(client, fresh_path());
    int lost = 0, events = 0;
    const auto thread = std::this_thread::get_id();
    mutex.on_lost([&] {
        CHECK(std::this_thread::get_id() == thread);
        lost++;
    });
    mutex.on_event([&] { events++; });
    const std::lock_guard guard(mutex);
    pollfd readable{client.event_fd(), POLLIN, 0};
    CHECK(poll(&readable, 1, 20000) == 1 && client.dispatch_events() == 1 && events == 1 && client.dispatch_events() == 0);
    expire(client);
    while (lost == 0) {
        CHECK(poll(&readable, 1, 20000) == 1);
        static_cast<void>(client.dispatch_events());
    }
    CHECK(lost == 1 && events >= 2);
}

// Without a server the call throws. It does not return false, because it does not know the holder.
void without_a_server_locks_throw()
{
    zkl::client client(check::servers, short_session());
    zkl::mutex mutex(client, fresh_path());
    CHECK(zkl_standalone_halt(server) == ZKL_OK);
    AWAIT(client.state() == zkl::state::suspended);
    const auto start = std::chrono::steady_clock::now();
    THROWS(connection, "", mutex.try_lock_for(50ms));
    CHECK(check::since(start) >= 50ms && check::since(start) <= 50ms + check::slack());
    THROWS(connection, "", mutex.try_lock());
    THROWS(connection, "", mutex.try_lock_until(std::chrono::system_clock::now() + 20ms));
    THROWS(connection, "", mutex.participants());
    std::thread waiter([&] { CHECK(mutex.try_lock_for(20s)); });
    AWAIT(mutex.waiting().size() == 1 && mutex.waiting()[0].what == zkl::waits_for::connection && mutex.waiting()[0].left > 10s);
    CHECK(zkl_standalone_restart(server) == ZKL_OK);
    waiter.join();
}

// A forked child cannot use the objects of its parent, but it can destroy them.
void forked_child_has_no_events()
{
    auto client = std::make_unique<zkl::client>(check::servers);
    auto mutex = std::make_unique<zkl::mutex>(*client, fresh_path());
    auto semaphore = std::make_unique<zkl::semaphore>(*client, fresh_path(), 1);
    zkl::hold lease = semaphore->acquire();
    std::atomic<int> events{0};
    mutex->on_lost([&] { events++; });
    client->on_event([&] { events++; });
    lease.on_lost([&] { events++; });
    mutex->lock();
    zkl::operation operation = mutex->start(zkl::owner{1});
    // A callback runs at the time of the fork. It continues in the parent only.
    auto busy = std::make_unique<zkl::mutex>(*client, fresh_path());
    std::atomic<bool> is_in{false}, may_leave{false};
    busy->on_event([&] {
        is_in = true;
        while (!may_leave) std::this_thread::sleep_for(1ms);
    });
    busy->lock();
    AWAIT(is_in);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20);
        THROWS(forked, "", mutex->lock());
        THROWS(forked, "", client->state());
        THROWS(forked, "", operation.wait());
        THROWS(forked, "", mutex->on_lost([] {}));
        CHECK(mutex->release() == zkl::status::forked && lease.release() == zkl::status::forked);
        operation = zkl::operation();
        mutex.reset();
        busy.reset();
        semaphore.reset();
        client.reset();
        _exit(0);
    }
    int status = -1;
    const bool has_ended = waitpid(child, &status, 0) == child;
    may_leave = true;
    CHECK(has_ended && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(mutex->is_held() && lease.is_held() && client->state() == zkl::state::connected);
}

} // namespace

int main(int argc, char **argv)
{
    check::begin(argc, argv);
    CHECK(zkl_standalone_start(nullptr, &server) == ZKL_OK);
    check::servers = zkl_standalone_address(server);
    RUN(loss_calls_the_locks_callback);
    RUN(a_lock_is_uncertain_before_it_is_lost);
    RUN(session_and_hold_events_are_delivered);
    RUN(loss_calls_the_leases_callback);
    RUN(a_thread_waits_for_a_loss);
    RUN(a_client_that_is_closed_is_a_loss);
    RUN(one_lock_of_several_is_lost);
    RUN(exception_in_a_callback_does_not_propagate);
    RUN(a_callback_may_not_wait_for_others);
    RUN(destructors_wait_for_callbacks);
    RUN(a_callback_that_another_takes_back_is_not_called);
    RUN(a_callback_may_destroy_its_lock_and_its_client);
    RUN(a_callback_may_destroy_its_leases);
    RUN(callbacks_are_destroyed);
    RUN(revocation_calls_the_holder);
    RUN(a_program_polls);
    RUN(without_a_server_locks_throw);
    RUN(forked_child_has_no_events);
    zkl_standalone_stop(server);
    return 0;
}
