//! A process with zklock that a check may kill or pause. It follows the protocol of the peers
//! (`tests/interop/curator/Peer.java`):

use std::collections::HashMap;
use std::io::stdin;
use std::thread;
use std::time::Duration;

use zklock::{Client, Config, Hold, Lock, Owner};

use crate::common::OwnerCalls as _;

/// The argument that makes the test binary run as such a process.
pub(crate) const FLAG: &str = "--zklock-process";

const ME: Owner = Owner::task(1);

struct Process {
    client: Client,
    locks: HashMap<String, Lock>,
    leases: Vec<Hold>,
}

/// Executes the commands on the standard input until the input ends.
pub(crate) fn run(address: &str, session_timeout: &str) {
    let config =
        Config::new().session_timeout(Duration::from_millis(session_timeout.parse().unwrap())).wait_for_kazoo(true);
    let client = Client::connect(address, &config).unwrap();
    let mut process = Process { client, locks: HashMap::new(), leases: Vec::new() };
    for line in stdin().lines() {
        let line = line.unwrap();
        process.execute(&line.split(' ').collect::<Vec<_>>());
    }
    // Exit immediately, like a program that crashes, so that no session is closed.
    std::process::exit(0);
}

impl Process {
    fn execute(&mut self, words: &[&str]) {
        match *words {
            [number, "acquire", path] => {
                let (number, lock) = (number.to_owned(), self.lock(path).clone());
                thread::spawn(move || {
                    let acquired = lock.acquire_as(ME, None);
                    println!("{number} {}", acquired.is_ok());
                });
            }
            [number, "held", path] => println!("{number} {}", self.lock(path).is_held_as(ME).unwrap()),
            [number, "lease", path, max, quantity] => {
                let semaphore = self.client.semaphore(path, max.parse().unwrap()).unwrap();
                self.leases.push(semaphore.acquire(quantity.parse().unwrap(), None).unwrap());
                println!("{number} true");
            }
            _ => panic!("no such command: {words:?}"),
        }
    }

    fn lock(&mut self, path: &str) -> &Lock {
        self.locks.entry(path.to_owned()).or_insert_with(|| self.client.mutex(path).unwrap())
    }
}
