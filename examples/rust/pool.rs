//! Limits a pool to three users at a time, and waits for its turn: `pool SERVERS PATH SECONDS`
//!
//! A use ends when a line of input arrives.

use std::error::Error;
use std::time::Duration;
use std::{env, io};

use zklock::{Client, Config, Status};

fn use_it() -> io::Result<()> {
    println!("using");
    io::stdin().read_line(&mut String::new())?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let [_, servers, path, seconds] = &env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: pool SERVERS PATH SECONDS".into());
    };
    let client = Client::connect(servers, &Config::new())?;
    let pool = client.semaphore(path, 3)?;
    match pool.acquire(1, Some(Duration::from_secs(seconds.parse()?))) {
        Ok(lease) => {
            use_it()?;
            lease.release()?;
            println!("returned");
        }
        Err(error) if error.status() == Status::Timeout => println!("full"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
