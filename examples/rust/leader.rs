//! Works as the leader until the lock is lost, then stops and acquires it again: `leader SERVERS PATH NAME`

use std::env;
use std::error::Error;
use std::time::Duration;

use zklock::{Client, Config, Status};

fn main() -> Result<(), Box<dyn Error>> {
    let [_, servers, path, name] = &env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: leader SERVERS PATH NAME".into());
    };
    let client = Client::connect(servers, &Config::new())?;
    let lock = client.mutex(path)?;
    loop {
        let hold = lock.hold(None)?; // also waits while no server answers
        println!("{name} leads");
        while !hold.wait_lost(Some(Duration::from_millis(200)))? {
            println!("{name} works"); // a step must be short compared with the session timeout
        }
        println!("{name} stops");
        // The hold has ended, even if no server can confirm this.
        match hold.release() {
            Err(error) if !matches!(error.status(), Status::Lost | Status::Connection) => return Err(error.into()),
            _ => {}
        }
    }
}
