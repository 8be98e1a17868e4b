//! A process with zklock that a check may kill or pause. It talks as the peers do (`tests/curator/Peer.java`):
//!
//!     1 acquire /path          1 true
//!     2 held /path             2 true

use std::collections::HashMap;
use std::io::stdin;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use zklock::{Client, Config, Lock, Owner};

/// What makes the test such a process.
pub(crate) const FLAG: &str = "--zklock-process";

const ME: Owner = Owner::Custom(1);

/// Does what the standard input says until it ends.
pub(crate) fn run(address: &str, session_timeout: &str) {
    let mut config = Config::new();
    config.set_session_timeout(Duration::from_millis(session_timeout.parse().unwrap())).unwrap();
    config.set_wait_for_kazoo(true);
    let client = Client::connect(address, &config).unwrap();
    let locks: Arc<Mutex<HashMap<String, Lock>>> = Arc::default();
    for line in stdin().lines() {
        let line = line.unwrap();
        let mut words = line.split(' ').map(str::to_owned);
        let [Some(number), Some(verb), Some(path)] = [words.next(), words.next(), words.next()] else {
            panic!("no command: {line}");
        };
        let lock = locks.lock().unwrap().entry(path.clone()).or_insert_with(|| client.mutex(&path).unwrap()).clone();
        match verb.as_str() {
            "held" => println!("{number} {}", lock.is_held_by(ME).unwrap()),
            "acquire" => drop(thread::spawn(move || {
                let acquired = lock.start_acquire(ME, None).and_then(|call| call.wait());
                println!("{number} {}", acquired.is_ok());
            })),
            _ => panic!("no such command: {line}"),
        }
    }
    // At once, as a program that crashes: no session is closed.
    std::process::exit(0);
}
