//! `zklock-standalone`: the in-memory ZooKeeper server as a program. It parses the arguments and starts the server.
//! Everything else is in the library.

mod control;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Parser;
use zklock_base::error::Status;
use zklock_standalone::{Server, Settings};

/// An in-memory ZooKeeper server for first steps and unit tests. It writes nothing to disk and does not replicate. It
/// runs until it receives SIGINT or SIGTERM, and then all data is lost. Use a real ensemble in production.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The host name or address and the port to listen on. Port 0 selects a free port. The program prints the address
    /// when it listens.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:2181")]
    listen: String,
    /// The unit of time in milliseconds. Session timeouts are between 2 and 20 units.
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    tick: u64,
    /// The interval, in milliseconds, at which empty containers are removed.
    #[arg(long, value_name = "MS", default_value_t = 60_000, value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    container_sweep: u64,
    /// Read commands that cause faults from the standard input, one a line, and write one line as the answer to each. The
    /// program ends at the end of the input.
    #[arg(long)]
    control: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let settings = Settings {
        tick: Duration::from_millis(arguments.tick),
        sweep: Duration::from_millis(arguments.container_sweep),
        ..Settings::default()
    };
    let server = match Server::bind(arguments.listen.as_str(), settings) {
        Ok(server) => Arc::new(server),
        Err(error) => {
            eprintln!("zklock-standalone: {error}");
            return if error.status() == Status::Invalid { ExitCode::from(2) } else { ExitCode::FAILURE };
        }
    };
    ExitCode::from(zklock_process::end_on_signal(|| {
        // The parent process may wait for this line. The parent process may also have closed the pipe, so the program
        // ignores a failure.
        let _ = writeln!(std::io::stdout(), "{}", server.address());
        if arguments.control {
            let server = Arc::clone(&server);
            thread::spawn(move || {
                control::serve(&server, std::io::stdin().lock(), std::io::stdout());
                std::process::exit(0);
            });
        }
    }))
}
