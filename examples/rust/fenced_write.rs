//! Writes to a store that refuses writes from a former holder of the lock: `fenced_write SERVERS PATH FILE`
//!
//! Each line of input is a value to write.

use std::error::Error;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::time::Duration;
use std::{env, io};

use zklock::{Client, Config, Status};

/// Writes to the store: a file with the largest token so far, and a value. The lock on the file makes the comparison and the write one
/// step, like a transaction in a database. Returns false and writes nothing if a later holder has already written.
fn store(path: &str, token: i64, value: &str) -> io::Result<bool> {
    let mut file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    file.lock()?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let largest = text.split(' ').next().and_then(|number| number.parse().ok());
    if largest.is_some_and(|largest: i64| token < largest) {
        return Ok(false);
    }
    file.rewind()?;
    file.set_len(0)?;
    writeln!(file, "{token} {value}")?;
    Ok(true)
}

fn main() -> Result<(), Box<dyn Error>> {
    let [_, servers, path, file] = &env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: fenced_write SERVERS PATH FILE".into());
    };
    let client = Client::connect(servers, &Config::new())?;
    let lock = client.mutex(path)?;
    let hold = lock.hold(Some(Duration::from_secs(30)))?;
    let token = hold.token();
    println!("holds with token {token}");
    for value in io::stdin().lines() {
        println!("{}", if store(file, token, &value?)? { "written" } else { "refused" });
    }
    match hold.release() {
        Ok(()) => println!("released"),
        Err(error) if error.status() == Status::Lost => println!("lost"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
