//! Runs a job unless another process is running it: `try_job SERVERS PATH`
//!
//! The job ends when a line of input arrives.

use std::error::Error;
use std::time::Duration;
use std::{env, io};

use zklock::{Client, Config, Status};

fn job() -> io::Result<()> {
    println!("running");
    io::stdin().read_line(&mut String::new())?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let [_, servers, path] = &env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: try_job SERVERS PATH".into());
    };
    let client = Client::connect(servers, &Config::new())?;
    let lock = client.mutex(path)?;
    match lock.hold(Some(Duration::ZERO)) {
        Ok(hold) => {
            job()?;
            hold.release()?; // fails with LOST if the lock was lost during the job
            println!("done");
        }
        Err(error) if error.status() == Status::Timeout => println!("skipped: {error}"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
