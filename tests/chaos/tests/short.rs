//! A short chaos run that injects each fault once, and tests of the checker and of the clean-up.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use zklock_chaos::checker::Rule;
use zklock_chaos::nemesis::Fault;
use zklock_chaos::programs::Language;
use zklock_chaos::report;
use zklock_chaos::run::{Environment, Outcome, Plan, run};
use zklock_test_support::{Network, TEST_TIMEOUT, slack, wait_until};

#[test]
fn every_fault_once_breaks_no_rule() {
    let plan = Plan {
        languages: Language::ALL.to_vec(),
        session_timeout: Duration::from_secs(3),
        allowance: allowance(),
        ..Plan::long(1, best_environment(), Duration::from_secs(30))
    };
    let outcome = run_until(plan.clone(), |outcome| {
        assert!(outcome.report.violations.is_empty(), "{}", report::table(&plan, outcome));
        let total = outcome.report.total();
        assert!(total.acquisitions > 50, "{}", report::table(&plan, outcome));
        total.checks_after_pause > 0
    });
    assert!(
        plan.faults.iter().all(|fault| outcome.completed_faults.contains_key(fault)),
        "{:?}",
        outcome.completed_faults
    );
}

/// The certificates are replaced more often than connections are cut, so that some connections meet a key without its
/// certificate.
#[test]
fn faults_over_tls_and_sasl_break_no_rule() {
    let plan = Plan {
        faults: vec![
            Fault::LeaderKilled,
            Fault::Reset,
            Fault::BlackHoleShort,
            Fault::LostReply,
            Fault::Delay,
            Fault::Refused,
        ],
        languages: Language::ALL.to_vec(),
        session_timeout: Duration::from_secs(3),
        allowance: allowance(),
        certificate_rotation: Some(Duration::from_millis(300)),
        uses_sasl: true,
        ..Plan::long(2, Environment::Loopback, Duration::from_secs(10))
    };
    let outcome = run(&plan).unwrap();
    assert!(outcome.report.violations.is_empty(), "{}", report::table(&plan, &outcome));
    assert!(outcome.report.total().acquisitions > 20 && outcome.rotations > 5, "{}", report::table(&plan, &outcome));
}

/// Programs that ignore losses continue after a pause as if nothing had happened. The checker reports this.
#[test]
fn checker_reports_programs_that_ignore_the_lease() {
    let plan = Plan {
        faults: vec![Fault::ProgramPausedLong],
        languages: vec![Language::Rust; 3],
        locks: "mutex:/a".to_owned(),
        session_timeout: Duration::from_secs(2),
        ignores_lease: true,
        ..Plan::long(1, Environment::Loopback, Duration::from_secs(12))
    };
    let rules = [Rule::Exclusion, Rule::ClaimOutlivesNode, Rule::SafeAfterPause];
    run_until(plan, |outcome| rules.iter().all(|&rule| outcome.report.count(rule) > 0));
}

/// After the chaos program is killed, no server and no program is left, whether it was running or paused.
#[test]
fn killed_run_leaves_no_processes() {
    let mut rig = Command::new(env!("CARGO_BIN_EXE_zklock-chaos"))
        .args(["--minutes", "5", "--seed", "77"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let marks = [format!("zklock-rig-{}-", rig.id()), "chaos-network-77/".to_owned(), "chaos-loopback-77/".to_owned()];
    let is_ours = |line: &String| marks.iter().any(|mark| line.contains(mark));
    let ours = || command_lines().into_iter().filter(is_ours).collect::<Vec<String>>();
    // Each server has a supervisor.
    wait_until(TEST_TIMEOUT, || ours().len() >= 3 * 2 + 6);
    rig.kill().unwrap();
    rig.wait().unwrap();
    wait_until(TEST_TIMEOUT, || ours().is_empty());
}

/// The command lines of all processes.
fn command_lines() -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes.filter_map(|process| fs::read_to_string(process.path().join("cmdline")).ok()).collect()
}

fn best_environment() -> Environment {
    // The thread that enters the namespace stays there, so it must not be the main thread.
    match thread::spawn(Network::enter).join().unwrap() {
        Ok(_) => Environment::Network,
        Err(error) => {
            println!("network namespaces are not available: {error}");
            Environment::Loopback
        }
    }
}

/// How much later than its time limit a call may return.
fn allowance() -> Duration {
    slack().max(Duration::from_secs(1))
}

/// Runs the plan until `has_happened` returns true for the outcome, with another seed each time, because chance decides
/// when a fault interrupts which program.
fn run_until(plan: Plan, has_happened: impl Fn(&Outcome) -> bool) -> Outcome {
    let first = plan.seed;
    for seed in first..first + 5 {
        let plan = Plan { seed, ..plan.clone() };
        // A thread cannot leave a network namespace.
        let outcome = thread::scope(|scope| scope.spawn(|| run(&plan)).join().unwrap()).unwrap();
        println!("{}", report::table(&plan, &outcome));
        if has_happened(&outcome) {
            return outcome;
        }
    }
    panic!("nothing of this kind happened with the seeds from {first}");
}
