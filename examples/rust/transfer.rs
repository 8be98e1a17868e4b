//! Moves an amount between two accounts while it holds the locks of both: `transfer SERVERS FROM TO AMOUNT SECONDS`
//!
//! An account is a file in the current directory.

use std::error::Error;
use std::time::Duration;
use std::{env, fs};

use zklock::{Client, Config, Lock, Status};

fn balance(account: &str) -> Result<i64, Box<dyn Error>> {
    Ok(fs::read_to_string(account)?.trim().parse()?)
}

fn transfer(from: &str, to: &str, amount: i64) -> Result<&'static str, Box<dyn Error>> {
    let available = balance(from)?;
    if available < amount {
        return Ok("not enough");
    }
    fs::write(from, format!("{}\n", available - amount))?;
    fs::write(to, format!("{}\n", balance(to)? + amount))?;
    Ok("transferred")
}

fn main() -> Result<(), Box<dyn Error>> {
    let [_, servers, from, to, amount, seconds] = &env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: transfer SERVERS FROM TO AMOUNT SECONDS".into());
    };
    let client = Client::connect(servers, &Config::new())?;
    let accounts = [client.mutex(&format!("/accounts/{from}"))?, client.mutex(&format!("/accounts/{to}"))?];
    let both = Lock::multi(&[&accounts[0], &accounts[1]])?;
    // Acquires both locks within the deadline, or none.
    match both.hold(Some(Duration::from_secs(seconds.parse()?))) {
        Ok(hold) => {
            println!("{}", transfer(from, to, amount.parse()?)?);
            hold.release()?;
        }
        Err(error) if error.status() == Status::Timeout => println!("not in time"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
