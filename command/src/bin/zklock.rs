//! The program `zklock`. The library of the package does all the work.

use std::process::ExitCode;

fn main() -> ExitCode {
    zklock_command::main(std::env::args_os()).into()
}
