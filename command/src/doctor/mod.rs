//! `zklock doctor`: checks everything that a lock needs, one thing after the other, and says what to do about each
//! problem.

mod finding;
mod lock;
mod servers;
mod settings;
mod words;

use std::collections::HashSet;
use std::thread::{Builder, ScopedJoinHandle};

use zklock::{Client, ConnectString, Server};

use self::finding::{Finding, Report};
use self::servers::ServerCheck;
use crate::cli::DoctorArguments;
use crate::exit::{Exit, Failure};
use crate::observe::table::{answer, width};
use crate::settings::Settings;

/// Runs all checks, and prints the findings.
pub(crate) fn run(arguments: &DoctorArguments) -> Result<Exit, Failure> {
    let report = match examine(arguments) {
        // A program that asks for JSON gets an object.
        Err(failure) if arguments.json => Report::of(
            Finding::fail("settings", "options", failure)
                .advise("Correct the option or the server list that the message names."),
        ),
        report => report?,
    };
    answer(&if arguments.json { format!("{}\n", report.to_json()) } else { report.show(width()) })?;
    Ok(report.exit())
}

fn examine(arguments: &DoctorArguments) -> Result<Report, Failure> {
    let settings = Settings::of_process(&arguments.connection)?;
    let list = ConnectString::parse(&settings.servers)?;
    let mut report = Report::default();
    report.add_all(settings::check(&settings, &list.servers));
    // Each server is checked on its own thread, because a server that does not answer takes several seconds.
    let checks: Vec<ServerCheck> = std::thread::scope(|scope| {
        let start = |server| {
            let (settings, chroot) = (&settings, &list.chroot);
            let thread = Builder::new().spawn_scoped(scope, move || servers::check(server, chroot, settings));
            (server, thread.map_err(|error| Failure::system("starting a thread", error)))
        };
        // A server that is given twice is checked once.
        let mut seen = HashSet::new();
        let threads: Vec<_> = list.servers.iter().filter(|server| seen.insert(*server)).map(start).collect();
        let panicked = |_| Failure::new(Exit::Internal, "the check of the server panicked");
        let end = |(server, thread): (&Server, Result<ScopedJoinHandle<'_, ServerCheck>, Failure>)| {
            let check = thread.and_then(|thread| thread.join().map_err(panicked));
            check.map_err(|failure| report.add(Finding::fail("name", server, failure))).ok()
        };
        threads.into_iter().filter_map(end).collect()
    });
    let is_available = checks.iter().any(ServerCheck::is_available);
    for check in &checks {
        report.add_all(check.findings(is_available));
    }
    report.add_all(servers::compare(&checks));
    if is_available && let Some(path) = &arguments.path {
        match Client::connect(&settings.servers, &settings.config) {
            Ok(client) => {
                let sessions = checks.iter().find_map(ServerCheck::sessions);
                report.add_all(lock::check(&client, &settings, path, sessions));
            }
            Err(error) => report.add(Finding::fail("session", &settings.servers, Failure::from(error)).advise(
                "Each server accepts a session, but the whole list does not work: compare the list with the findings above.",
            )),
        }
    }
    Ok(report)
}
