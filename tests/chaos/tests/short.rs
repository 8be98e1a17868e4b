//! The short form of the rig: each fault once, in a minute or so; and that it would notice.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use zklock_chaos::judge::Rule;
use zklock_chaos::nemesis::Fault;
use zklock_chaos::programs::Language;
use zklock_chaos::report;
use zklock_chaos::run::{Outcome, Place, Plan, run};
use zklock_rig::{Network, wait_until};

/// Whatever goes wrong, no promise is broken.
#[test]
fn a_minute_of_everything() {
    let plan = Plan {
        languages: Language::ALL.to_vec(),
        session_timeout: Duration::from_secs(3),
        ..Plan::long(1, best_place(), Duration::from_secs(30))
    };
    let outcome = run(&plan).unwrap();
    println!("{}", report::table(&plan, &outcome));
    assert!(outcome.judgement.violations.is_empty(), "{}", report::table(&plan, &outcome));
    let total = outcome.judgement.total();
    assert!(total.acquisitions > 50 && total.awakenings > 0, "{}", report::table(&plan, &outcome));
    assert!(plan.faults.iter().all(|fault| outcome.survived.contains_key(fault)), "{:?}", outcome.survived);
}

/// Programs whose lock has no lease go on after they were stopped, as if nothing had happened. The judge sees that.
#[test]
fn a_lock_without_a_lease_is_found_out() {
    let plan = Plan {
        faults: vec![Fault::StoppedForLong],
        languages: vec![Language::Rust; 3],
        locks: "mutex:/a".to_owned(),
        session_timeout: Duration::from_secs(2),
        believes: true,
        ..Plan::long(1, Place::Loopback, Duration::from_secs(12))
    };
    let outcome: Outcome = run(&plan).unwrap();
    for rule in [Rule::Exclusion, Rule::Gone, Rule::Awakening] {
        assert!(outcome.judgement.count(rule) > 0, "{rule} was not noticed\n{}", report::table(&plan, &outcome));
    }
}

/// Neither servers nor programs, running or stopped.
#[test]
fn nothing_is_left_of_a_rig_that_was_killed() {
    let mut rig = Command::new(env!("CARGO_BIN_EXE_zklock-chaos"))
        .args(["--minutes", "5", "--seed", "77"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let marks = [format!("zklock-rig-{}-", rig.id()), "chaos-network-77/".to_owned(), "chaos-loopback-77/".to_owned()];
    let is_ours = |line: &String| marks.iter().any(|mark| line.contains(mark));
    let ours = || command_lines().into_iter().filter(is_ours).collect::<Vec<String>>();
    // Each server has a supervisor.
    wait_until(Duration::from_secs(60), || ours().len() >= 3 * 2 + 6);
    rig.kill().unwrap();
    rig.wait().unwrap();
    wait_until(Duration::from_secs(10), || ours().is_empty());
}

/// Of all processes.
fn command_lines() -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes.filter_map(|process| fs::read_to_string(process.path().join("cmdline")).ok()).collect()
}

fn best_place() -> Place {
    // On a thread of its own, which is in the network from then on.
    match thread::spawn(Network::enter).join().unwrap() {
        Ok(_) => Place::Network,
        Err(error) => {
            println!("no network namespaces: {error}");
            Place::Loopback
        }
    }
}
