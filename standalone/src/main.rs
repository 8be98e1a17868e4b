//! `zklock-standalone`: the in-memory ZooKeeper server as a program.

use std::io::Write as _;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Parser;
use zklock::Status;
use zklock_standalone::{Server, Settings};

/// An in-memory ZooKeeper server for first steps and unit tests. It keeps nothing on disk, is alone, and forgets everything
/// when it ends, which is when it gets SIGINT or SIGTERM: production runs on a real ensemble.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Where to listen: a host name or an address, and a port; with port 0 on a free one. The address is printed when it listens.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:2181")]
    listen: String,
    /// The unit of time in milliseconds: session timeouts are from 2 to 20 of them.
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    tick: u64,
    /// How often, in milliseconds, empty containers are removed.
    #[arg(long, value_name = "MS", default_value_t = 60_000, value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    container_sweep: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let settings = Settings {
        tick: Duration::from_millis(arguments.tick),
        sweep: Duration::from_millis(arguments.container_sweep),
        ..Settings::default()
    };
    let server = match Server::bind(arguments.listen.as_str(), settings) {
        Ok(server) => server,
        Err(error) => {
            eprintln!("zklock-standalone: {error}");
            return if error.status() == Status::Invalid { ExitCode::from(2) } else { ExitCode::FAILURE };
        }
    };
    // Whoever started it may wait for this line, or may not care and have closed the pipe.
    let _ = writeln!(std::io::stdout(), "{}", server.address());
    loop {
        thread::park();
    }
}
