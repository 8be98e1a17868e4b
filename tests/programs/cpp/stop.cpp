// Stop tokens of C++20: the loss of a hold requests a stop, and a stop request ends a wait.
#include "check.hpp"

#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <stop_token>
#include <vector>

#include <zklock_standalone.h>

#ifndef __cpp_lib_jthread
#error "this is to be compiled as C++20, with a library that has stop tokens"
#endif

using namespace std::chrono_literals;
using check::fresh_path;

namespace {

std::string real;
zkl_standalone *server;

void expire(const zkl::client &client)
{
    CHECK(zkl_standalone_expire(server, client.session_id()) == ZKL_OK);
}

// A lock still satisfies Lockable.
static_assert(requires(zkl::mutex &mutex) { mutex.lock(); } && requires(zkl::mutex &mutex) { mutex.lock(std::stop_token()); });

// Two threads that request a token at the same time get the same stop state. Closing the client stops it.
void concurrent_lost_token_calls_are_safe()
{
    for (int round = 0; round < 50; round++) {
        zkl::client client(check::servers);
        zkl::mutex mutex(client, fresh_path());
        const zkl::hold held = mutex.acquire();
        std::stop_token one, two;
        std::atomic<bool> begins{false};
        std::thread other([&] {
            while (!begins) {}
            one = held.lost_token();
        });
        begins = true;
        two = held.lost_token();
        other.join();
        CHECK(one == two && !one.stop_requested());
        client.close();
        CHECK(one.stop_requested() && held.lost_token().stop_requested());
    }
}

// The loss of a hold requests a stop of its token.
void work_stops_when_its_lock_is_lost()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path());
    zkl::hold held = mutex.acquire();
    const std::stop_token token = held.lost_token(), same = held.lost_token();
    CHECK(token == same && token.stop_possible() && !token.stop_requested());
    std::atomic<bool> was_called{false};
    const std::stop_callback callback(token, [&] { was_called = true; });
    std::thread([&] { CHECK(held.lost_token() == token); }).join();
    expire(client);
    AWAIT(token.stop_requested() && was_called);
    AWAIT(held.state() == zkl::lock_state::lost);
    CHECK(held.lost_token().stop_requested() && held.release() == zkl::status::lost);
    THROWS(handle, "", held.lost_token());

    // The next hold has its own token.
    held = mutex.acquire();
    const std::stop_token next = held.lost_token();
    CHECK(next != token && !next.stop_requested() && held.release() == zkl::status::ok);
    // The token of a hold that has ended cannot be stopped any more.
    AWAIT(!next.stop_possible());
    held = mutex.acquire();
    const std::stop_token third = held.lost_token();
    CHECK(third != next);
    expire(client);
    AWAIT(third.stop_requested());
    CHECK(!next.stop_requested());
}

// The hold is UNCERTAIN, so no program may rely on it.
void work_stops_when_its_lock_is_uncertain()
{
    zkl::client client(check::servers, zkl::config().session_timeout(3s).lease_margin(750ms));
    zkl::mutex mutex(client, fresh_path());
    const zkl::hold held = mutex.acquire();
    const std::int64_t session = client.session_id();
    const std::stop_token token = held.lost_token();
    CHECK(zkl_standalone_freeze(server, session) == ZKL_OK);
    AWAIT(token.stop_requested());
    CHECK(held.state() == zkl::lock_state::uncertain && held.lost_token().stop_requested());
    CHECK(zkl_standalone_thaw(server, session) == ZKL_OK);
    AWAIT(held.state() == zkl::lock_state::held || held.state() == zkl::lock_state::lost);
    // The token speaks of the whole hold, which has not been safe throughout.
    CHECK(token.stop_requested() && held.lost_token() == token);
}

// Holds of all kinds of locks and leases have a token, which is stopped at their loss.
void every_hold_has_a_token()
{
    zkl::client client(check::servers), other(check::servers);
    zkl::mutex mutex(client, fresh_path());
    zkl::shared_mutex shared(client, fresh_path());
    zkl::semaphore_mutex anybodys(client, fresh_path());
    zkl::semaphore semaphore(client, fresh_path(), 3);
    zkl::mutex here(client, fresh_path()), there(other, fresh_path());
    zkl::multi both(here, there);
    const zkl::hold one = semaphore.acquire(), two = semaphore.acquire(2), of_mutex = mutex.acquire(), of_anybodys = anybodys.acquire();
    const zkl::hold reader = shared.reader().acquire(), second_reader = shared.reader().acquire();
    zkl::hold of_both = both.acquire(zkl::owner{5});
    const zkl::hold of_here = here.acquire(zkl::owner{5});
    zkl::hold of_there = there.acquire(zkl::owner{5});
    const std::vector<std::stop_token> tokens{of_mutex.lost_token(), of_anybodys.lost_token(), reader.lost_token(),  second_reader.lost_token(),
                                              of_both.lost_token(),  one.lost_token(),         two.lost_token(), of_here.lost_token()};
    CHECK(one.lost_token() == tokens[5] && of_both.lost_token() == tokens[4] && tokens[4] != tokens[7] && tokens[2] != tokens[3]);
    const std::stop_token elsewhere = of_there.lost_token();
    for (const std::stop_token &token : tokens) CHECK(token.stop_possible() && !token.stop_requested());
    expire(client);
    for (const std::stop_token &token : tokens) AWAIT(token.stop_requested());
    CHECK(!elsewhere.stop_requested() && of_there.is_held());
    AWAIT(one.state() == zkl::lock_state::lost);
    CHECK(one.lost_token().stop_requested());
    CHECK(of_both.release() == zkl::status::lost && of_there.release() == zkl::status::ok);
    // The session of the other client ends.
    of_both = both.acquire();
    const std::stop_token again = of_both.lost_token();
    expire(other);
    AWAIT(again.stop_requested());
    // The client is closed.
    const zkl::hold last_of_mutex = mutex.acquire(), last = semaphore.acquire();
    const std::stop_token closed = last_of_mutex.lost_token(), leases_closed = last.lost_token();
    CHECK(!closed.stop_requested() && !leases_closed.stop_requested());
    client.close();
    CHECK(closed.stop_requested() && leases_closed.stop_requested());
}

// The destruction of a member lock ends its hold, and the multi-lock is closed.
void a_member_lock_is_destroyed_while_it_is_held()
{
    zkl::client client(check::servers);
    auto one = std::make_unique<zkl::mutex>(client, fresh_path());
    zkl::mutex two(client, fresh_path());
    zkl::multi both(*one, two);
    const zkl::hold of_both = both.acquire(zkl::owner{5}), of_two = two.acquire(zkl::owner{5});
    const std::stop_token token = of_both.lost_token(), other = of_two.lost_token();
    CHECK(!token.stop_requested());
    one.reset();
    CHECK(of_both.lost_token().stop_requested() && !of_both.is_held());
    CHECK(of_two.lost_token() == other && !other.stop_requested() && of_two.is_held());
}

// The token of a multi-lock still stops when a lock that its owner continues to hold is lost, whichever member was destroyed.
void every_member_lock_of_a_broken_multi_lock_is_watched()
{
    for (const bool is_first_destroyed : {true, false}) {
        zkl::client client(check::servers);
        auto one = std::make_unique<zkl::mutex>(client, fresh_path()), two = std::make_unique<zkl::mutex>(client, fresh_path());
        zkl::multi both(*one, *two);
        const zkl::hold held = both.acquire();
        const std::stop_token token = held.lost_token();
        std::atomic<int> ends{0};
        client.on_event([&](const zkl::event &event) { ends += event.lock_state() == zkl::lock_state::free; });
        (is_first_destroyed ? one : two).reset();
        AWAIT(ends == 1);
        CHECK(!token.stop_requested());
        client.close();
        CHECK(token.stop_requested());
    }
}

// If a program polls for events but never dispatches, the library keeps no token of a hold that has ended.
void tokens_of_holds_that_are_over_are_forgotten()
{
    zkl::client client(check::servers, zkl::config().poll_events());
    zkl::mutex mutex(client, fresh_path());
    std::stop_token before;
    for (int i = 0; i < 10; i++) {
        const zkl::hold held = mutex.acquire();
        const std::stop_token token = held.lost_token();
        CHECK(token.stop_possible() && !before.stop_possible());
        before = token;
    }
}

// A stop request ends only the calls with its token, whatever they wait for, and no node is left behind.
void a_wait_stops()
{
    zkl::client client(check::servers);
    zkl::shared_mutex shared(client, fresh_path());
    zkl::semaphore semaphore(client, fresh_path(), 1);
    const zkl::hold lease = semaphore.acquire();
    check::holder holder(shared);
    const std::vector<std::function<void(std::stop_token)>> calls{
        [&](std::stop_token stop) { shared.lock(stop); },
        [&](std::stop_token stop) { CHECK(shared.try_lock_for(1h, stop)); },
        [&](std::stop_token stop) { CHECK(shared.try_lock_until(std::chrono::system_clock::now() + 1h, stop)); },
        [&](std::stop_token stop) { shared.lock_shared(stop); },
        [&](std::stop_token stop) { CHECK(shared.try_lock_shared_for(1h, stop)); },
        [&](std::stop_token stop) { CHECK(shared.try_lock_shared_until(std::chrono::steady_clock::now() + 1h, stop)); },
        [&](std::stop_token stop) { static_cast<void>(semaphore.acquire(stop)); },
        [&](std::stop_token stop) { CHECK(semaphore.try_acquire_for(1h, stop)); },
    };
    std::atomic<bool> may_stay{true};
    std::thread patient([&] {
        shared.lock();
        CHECK(!may_stay);
        shared.unlock();
    });
    const auto waiting = [&] { return shared.waiting().size() + shared.reader().waiting().size() + semaphore.waiting().size(); };
    AWAIT(waiting() == 1);
    for (const auto &call : calls) {
        // The stop is requested before the call and during the call.
        std::stop_source stopped;
        stopped.request_stop();
        THROWS(canceled, "stop token", call(stopped.get_token()));
        std::stop_source source;
        std::thread thread([&] { THROWS(canceled, "", call(source.get_token())); });
        AWAIT(waiting() == 2);
        source.request_stop();
        thread.join();
        AWAIT(waiting() == 1);
    }
    AWAIT(shared.queue().size() == 2 && semaphore.participants().size() == 1);
    // If the time limit ends first, the call reports the timeout.
    std::stop_source idle;
    CHECK(!shared.try_lock_for(20ms, idle.get_token()) && !shared.try_lock_for(0s, idle.get_token()));
    CHECK(!shared.try_lock_until(std::chrono::steady_clock::now() + 20ms, idle.get_token()));
    CHECK(!semaphore.try_acquire_for(20ms, idle.get_token()));
    may_stay = false;
    holder.release();
    patient.join();
    // A token without a stop request has no effect.
    shared.lock(idle.get_token());
    shared.lock(std::stop_token());
    shared.unlock();
    CHECK(shared.is_held() && shared.release() == zkl::status::ok);
}

// A stop request at any moment, even while the acquire succeeds: the call either holds the lock or leaves nothing
// behind. In every second round the lock is free. In the other rounds another client holds it and releases it at a
// random moment. The first round has no stop request, and the second round has one before the call, so that both results
// occur on every machine.
void a_wait_stops_at_any_moment()
{
    const int rounds = check::slack() == 1000ms ? 200 : 20;
    zkl::client client(real), another(real);
    const std::string path = fresh_path();
    zkl::mutex mutex(client, path), rival(another, path);
    std::mt19937 random(1);
    const auto pause = [&random] { return std::chrono::microseconds(random() % 4000); };
    int got = 0, stopped = 0;
    for (int round = 0; round < rounds; round++) {
        std::unique_lock taken(rival, std::defer_lock);
        if (round % 2 == 1) taken.lock();
        std::stop_source source;
        if (round == 1) source.request_stop();
        std::thread stopper([&source, round, pause = pause()] {
            std::this_thread::sleep_for(pause);
            if (round != 0) source.request_stop();
        });
        std::thread waiter([&] {
            try {
                mutex.lock(source.get_token());
                got++;
                CHECK(mutex.is_held() && mutex.release() == zkl::status::ok);
            } catch (const zkl::error &error) {
                CHECK(error.status() == zkl::status::canceled && error.code() == std::errc::operation_canceled);
                CHECK(!mutex.is_held() && mutex.state() == zkl::lock_state::free);
                stopped++;
            }
        });
        std::this_thread::sleep_for(pause());
        if (taken) taken.unlock();
        waiter.join();
        stopper.join();
    }
    CHECK(got > 0 && stopped > 0);
    AWAIT(mutex.participants().empty());
}

// In a callback, the overloads with a stop token fail at once, and do not join the queue.
void a_callback_may_not_wait_with_a_stop_token()
{
    zkl::client client(check::servers);
    zkl::mutex mutex(client, fresh_path()), free(client, fresh_path());
    zkl::semaphore semaphore(client, fresh_path(), 1);
    std::atomic<bool> is_done{false};
    mutex.on_event([&] {
        if (is_done) return;
        const std::stop_token token = std::stop_source().get_token();
        const std::uint64_t canceled = client.metrics().acquires_canceled;
        for (int round = 0; round < 20; round++) {
            THROWS(deadlock, "", free.lock(token));
            THROWS(deadlock, "", free.try_lock_for(1s, token));
            THROWS(deadlock, "", semaphore.acquire(token));
            THROWS(deadlock, "", semaphore.try_acquire_for(1s, token));
        }
        CHECK(client.metrics().acquires_canceled == canceled);
        CHECK(free.try_lock_for(0s, token) && free.release() == zkl::status::ok);
        CHECK(semaphore.try_acquire_for(0s, token));
        is_done = true;
    });
    mutex.lock();
    AWAIT(is_done);
    mutex.unlock();
}

} // namespace

int main(int argc, char **argv)
{
    check::begin(argc, argv);
    real = check::servers;
    CHECK(zkl_standalone_start(nullptr, &server) == ZKL_OK);
    check::servers = zkl_standalone_address(server);
    RUN(concurrent_lost_token_calls_are_safe);
    RUN(work_stops_when_its_lock_is_lost);
    RUN(work_stops_when_its_lock_is_uncertain);
    RUN(every_hold_has_a_token);
    RUN(a_member_lock_is_destroyed_while_it_is_held);
    RUN(every_member_lock_of_a_broken_multi_lock_is_watched);
    RUN(tokens_of_holds_that_are_over_are_forgotten);
    RUN(a_wait_stops);
    RUN(a_wait_stops_at_any_moment);
    RUN(a_callback_may_not_wait_with_a_stop_token);
    zkl_standalone_stop(server);
    return 0;
}
