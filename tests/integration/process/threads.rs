//! No library thread is left after the last client, in whatever order clients are created and closed. This is
//! the only test in its process.

#![allow(clippy::unwrap_used, reason = "a failing test may panic")]

#[path = "../common.rs"]
mod common;

use std::fs;
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use common::{TEST_TIMEOUT, client, path};
use zklock::{Client, Config};
use zklock_test_support::{ZooKeeper, wait_until};

#[test]
fn no_thread_outlives_the_last_client() {
    let server = &ZooKeeper::shared().address();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let nowhere = silent.local_addr().unwrap().to_string();

    let last = client(server);
    expect_library_threads(&["zkl-io"]);
    drop(last);
    expect_library_threads(&[]);

    // The threads create a thousand clients. Often the last client ends while the next one starts.
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for round in 0..125 {
                    let client = client(server);
                    if round % 5 == 0 {
                        let lock = client.mutex(&path("threads")).unwrap();
                        lock.acquire(None).unwrap();
                        // The client handle is dropped first. The lock is the last user of the client.
                        drop(client);
                        lock.release().unwrap();
                    }
                }
            });
        }
    });
    expect_library_threads(&[]);

    // This connection attempt is dropped while it still looks for a server.
    let connecting = Client::start_connect(&nowhere, &Config::new()).unwrap();
    assert!(connecting.wait_for(Duration::from_millis(20)).is_none());
    drop(connecting);
    expect_library_threads(&[]);
}

/// The kernel lists a thread for a moment after it was joined.
fn expect_library_threads(expected: &[&str]) {
    let names = || -> Vec<String> {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.map(|name| name.trim_end().to_owned()).filter(|name| name.starts_with("zkl-")).collect()
    };
    wait_until(TEST_TIMEOUT, || names() == expected);
}
