//! Random kills, stops and network faults against calls that compete for a few locks. The short form belongs to the
//! tests; `make faults` runs the long one.
//!
//! The processes of a command share the description of an open file with a `flock`. The kernel frees this flock when
//! the last of them has ended. A command that finds the flock taken has therefore started while a process of an earlier
//! command was still alive.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use zklock_test_support::{Proxy, ZooKeeper, wait_until};

use crate::common::{Running, file, path, process, raw, try_send, wait_for_queue, zklock_on};

/// Variables: `WITNESS` is the file with the flock, and `OVERLAPS` a file with a line for each overlap.
const COMMAND: &str = "exec 8>>\"$WITNESS\"; flock -n 8 || echo \"token $ZKLOCK_FENCE\" >>\"$OVERLAPS\"; \
    (setsid sh -c '(sleep 60 &); sleep 60' &); trap \"$ON_TERM\" TERM; sleep $LENGTH & wait; exit 3";

const SESSION_TIMEOUT: Duration = Duration::from_secs(3);
/// Longer than several sessions that end one after the other.
const TURN_LIMIT: Duration = Duration::from_secs(120);
/// A killed wrapper leaves no process for longer than one second. The rest is a margin for a busy machine.
const TREE_LIMIT: Duration = Duration::from_secs(10);
/// The exit code of the command.
const FINISHED: i32 = 3;
/// The exit codes of a call whose session has expired, or that has found no server in time.
const LOST: [i32; 3] = [69, 79, 80];
/// The number of calls that compete for each lock.
const CALLERS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    KillWrapper,
    StopWrapper,
    TermWrapper,
    KillGuardian,
    StopGuardian,
    KillCommand,
    StopCommand,
    CutConnection,
    SilentNetwork,
    RefusedConnection,
}

impl Fault {
    const ALL: [Self; 11] = [
        Self::None,
        Self::KillWrapper,
        Self::StopWrapper,
        Self::TermWrapper,
        Self::KillGuardian,
        Self::StopGuardian,
        Self::KillCommand,
        Self::StopCommand,
        Self::CutConnection,
        Self::SilentNetwork,
        Self::RefusedConnection,
    ];

    /// Causes the fault. The processes may not have started yet, or may have ended already.
    fn cause(self, call: &Running, proxy: &Proxy, random: &mut Random) {
        match self {
            Self::None => (),
            Self::KillWrapper => _ = try_send(call.pid(), libc::SIGKILL),
            Self::TermWrapper => {
                // Until the wrapper blocks its signals, SIGTERM ends the wrapper like any other program.
                wait_until(TURN_LIMIT, || blocks_term(call.pid()) || process(call.pid()).is_none());
                _ = try_send(call.pid(), libc::SIGTERM);
            }
            Self::StopWrapper => {
                _ = try_send(call.pid(), libc::SIGSTOP);
                sleep(random.below(SESSION_TIMEOUT * 2));
                _ = try_send(call.pid(), libc::SIGCONT);
            }
            Self::KillGuardian => signal(call, "zklock-guardian", libc::SIGKILL),
            Self::StopGuardian => signal(call, "zklock-guardian", libc::SIGSTOP),
            Self::KillCommand => signal(call, "sh", libc::SIGKILL),
            Self::StopCommand => {
                let stopped: Vec<i32> =
                    call.tree().iter().filter(|process| process.name == "sh").map(|process| process.pid).collect();
                stopped.iter().for_each(|&pid| _ = try_send(pid, libc::SIGSTOP));
                sleep(random.below(SESSION_TIMEOUT));
                stopped.iter().for_each(|&pid| _ = try_send(pid, libc::SIGCONT));
            }
            Self::CutConnection => proxy.cut(),
            Self::SilentNetwork => {
                proxy.black_hole(true);
                sleep(random.below(SESSION_TIMEOUT * 2));
                proxy.black_hole(false);
                proxy.cut();
            }
            Self::RefusedConnection => {
                proxy.refuse(true);
                proxy.cut();
                sleep(random.below(SESSION_TIMEOUT * 2));
                proxy.refuse(false);
            }
        }
    }

    /// The exit codes of a call with this fault. The fault may have come too early or too late to have an effect.
    fn codes(self) -> &'static [i32] {
        match self {
            Self::KillWrapper => &[FINISHED, 1009],
            Self::TermWrapper => &[FINISHED, 0, 137, 143],
            Self::KillGuardian => &[FINISHED, 70],
            Self::KillCommand => &[FINISHED, 137],
            _ => &[FINISHED],
        }
    }

    /// Whether the fault costs no lock, unless the machine is so busy that a session expires.
    fn is_harmless(self) -> bool {
        matches!(self, Self::None | Self::StopGuardian | Self::StopCommand | Self::CutConnection)
    }
}

/// Returns whether a process blocks SIGTERM. The wrapper reads its signals from a descriptor.
fn blocks_term(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap_or_default();
    u64::from_str_radix(blocked.trim(), 16).is_ok_and(|signals| signals & (1 << (libc::SIGTERM - 1)) != 0)
}

fn signal(call: &Running, name: &str, signal: i32) {
    if let Some(process) = call.processes().into_iter().find(|process| process.name == name) {
        // The process may have ended in the meantime.
        _ = try_send(process.pid, signal);
    }
}

/// The generator SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: Duration) -> Duration {
        Duration::from_micros(self.next() % u64::try_from(limit.as_micros()).unwrap())
    }

    fn choose<T: Copy>(&mut self, values: &[T]) -> T {
        values[usize::try_from(self.next() % values.len() as u64).unwrap()]
    }
}

/// The files of one lock.
struct Witness {
    path: String,
    flock: PathBuf,
    overlaps: PathBuf,
}

/// Makes one call and causes one fault at a random time. Checks how the call ends, and returns the fault and the exit
/// code.
fn call_with_fault(witness: &Witness, proxy: &Proxy, random: &mut Random) -> (Fault, i32) {
    let fault = random.choose(&Fault::ALL);
    // A command that is longer than the lease can lose the lock.
    let longest = random.choose(&[Duration::from_secs(1), Duration::from_secs(1), SESSION_TIMEOUT * 2]);
    let (length, at) = (random.below(longest), random.below(Duration::from_millis(1200)));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let options = ["run", "-q", "-o", "session.timeout=3000", "--grace", "200ms", &witness.path, "sh", "-c", COMMAND];
    let mut call = zklock_on(&proxy.address(), &options)
        .env("WITNESS", &text(&witness.flock))
        .env("OVERLAPS", &text(&witness.overlaps))
        .env("ON_TERM", random.choose(&["", "exit", "-"]))
        .env("LENGTH", &length.as_secs_f64().to_string())
        .start();
    sleep(at);
    fault.cause(&call, proxy, random);
    wait_until(TURN_LIMIT, || process(call.pid()).is_none());
    let (code, ended) = (call.wait(), Instant::now());
    wait_until(TURN_LIMIT, || call.processes().is_empty());
    let (lived, errors) = (ended.elapsed(), String::from_utf8(call.output().stderr).unwrap());
    assert!(
        fault.codes().contains(&code) || LOST.contains(&code),
        "{fault:?} after {at:?}: exit code {code}: {errors}"
    );
    assert!(lived < TREE_LIMIT, "{fault:?} after {at:?}: a process lived {lived:?} longer than the wrapper: {errors}");
    (fault, code)
}

/// The number of calls with each fault and each exit code.
fn table(ends: &[(Fault, i32)]) -> String {
    let mut counts = BTreeMap::new();
    ends.iter().for_each(|&(fault, code)| *counts.entry((format!("{fault:?}"), code)).or_insert(0) += 1);
    counts.into_iter().map(|((fault, code), count)| format!("{fault:<18}{code:>5}{count:>6}\n")).collect()
}

#[test]
fn random_faults_leave_no_process_no_node_and_no_double_run() {
    let rounds: usize = std::env::var("TEST_ZKLOCK_FAULTS").map_or(60, |rounds| rounds.parse().unwrap());
    let locks = (rounds / 20).clamp(1, 8);
    let witnesses: Vec<Witness> = (0..locks)
        .map(|_| Witness { path: path("faults"), flock: file("flock"), overlaps: file("overlaps") })
        .collect();
    let (begun, ends) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for caller in 0..locks * CALLERS {
            let (witness, begun, ends) = (&witnesses[caller % locks], &begun, &ends);
            scope.spawn(move || {
                let proxy = Proxy::start(&ZooKeeper::shared().address());
                loop {
                    let round = begun.fetch_add(1, Ordering::Relaxed);
                    if round >= rounds {
                        break;
                    }
                    let end = call_with_fault(witness, &proxy, &mut Random(round as u64));
                    ends.lock().unwrap().push(end);
                }
            });
        }
    });
    let ends = ends.into_inner().unwrap();
    let harmless: Vec<i32> = ends.iter().filter(|(fault, _)| fault.is_harmless()).map(|&(_, code)| code).collect();
    let finished = harmless.iter().filter(|&&code| code == FINISHED).count();
    assert!(finished * 2 > harmless.len(), "{finished} of {} calls with harmless faults finished", harmless.len());
    println!("{}", table(&ends));
    let mut raw = raw();
    for witness in witnesses {
        wait_for_queue(&mut raw, &witness.path, 0);
        assert!(
            !witness.overlaps.exists(),
            "two commands at a time: {}",
            fs::read_to_string(&witness.overlaps).unwrap()
        );
        // If all faults of a short campaign came before the commands, there is no file.
        _ = fs::remove_file(&witness.flock);
    }
}
