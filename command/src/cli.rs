//! The arguments of the command, and its help.

use std::ffi::OsString;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum, ValueHint};
use zklock::{Error, Period};

use crate::duration;
use crate::owner;

const EXAMPLES: &str = "\
Examples:
  export ZKLOCK_SERVERS=zk1:2181,zk2:2181,zk3:2181

  zklock run /locks/nightly -- ./report.sh         wait for the lock, then run the report
  zklock run -n /locks/nightly -- ./report.sh      run it only if nobody holds the lock
  zklock run -w 5m /locks/import -- ./import.sh    wait for at most five minutes
  zklock run --leave-running /locks/deploy -- make deploy
                                                   what it starts in the background keeps running
  zklock run --once-per day /locks/nightly -- ./report.sh
                                                   on many hosts: only one of them runs it each day
  zklock run /locks/db -c 'dump | gzip > db.gz'    through a shell
  zklock try /locks/nightly || echo busy           is the lock free?

Exit codes:
  the code of the command that ran; 128+N if signal N ended it
   64 wrong arguments             77 access refused       81 release not confirmed
   69 no server answered          79 lock lost, command   82 lock revoked, command ended
   70 internal error                 was ended            83 path used by another kind of lock
   75 lock busy, or the job has   80 lock lost before    126 command cannot be executed
      already run                    the command ended   127 command not found";

/// Run programs under a distributed lock.
///
/// While one host runs a program with `zklock run`, every other host that uses the same path waits or leaves. The lock
/// is kept on a ZooKeeper ensemble. If this host, its network or the program dies, the lock becomes free by itself.
#[derive(Debug, Parser)]
#[command(name = "zklock", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Acquire a lock, run a command, and release the lock.
    ///
    /// Waits for the lock, runs the command, and returns its exit code. Signals reach the command. When the command
    /// ends, or the lock is lost, zklock ends every process that the command has started.
    #[command(after_help = RUN_EXAMPLES, after_long_help = long(RUN_EXAMPLES, include_str!("../man/run.txt")), override_usage = RUN_USAGE)]
    Run(RunArguments),
    /// Acquire a lock without waiting.
    ///
    /// With a command, `try` works like `run -n`. Without a command, `try` releases the lock at once: it exits with 0
    /// if the lock was free, and with 75 if not. A try that does not acquire the lock writes nothing to the servers.
    #[command(after_help = TRY_EXAMPLES, override_usage = TRY_USAGE)]
    Try(TryArguments),
    /// Acquire a lock for a shell script.
    ///
    /// Waits for the lock, prints what the script needs to know, and returns. A process in the background keeps the
    /// lock until the script ends, or `zklock release` is called.
    #[command(after_help = HOLD_EXAMPLES, after_long_help = long(HOLD_EXAMPLES, include_str!("../man/hold.txt")))]
    Hold(HoldArguments),
    /// Release the lock of `zklock hold`.
    ///
    /// Ends the process in the background, and waits until it has released the lock.
    #[command(after_long_help = include_str!("../man/release.txt"))]
    Release(ReleaseArguments),
    /// List the locks below a path, with their holders.
    ///
    /// Shows a tree of all locks that are held or waited for: the kind of lock, how many wait, since when, and who
    /// holds it.
    #[command(after_long_help = include_str!("../man/look.txt"))]
    Ls(LsArguments),
    /// Show the queue of a lock.
    ///
    /// Shows all holders and waiters in the order of the queue, and the last runs of a job with --once-per.
    #[command(after_long_help = include_str!("../man/look.txt"))]
    Status(StatusArguments),
    /// Watch the locks below a path.
    ///
    /// Shows the locks that are held or waited for, and refreshes by itself, as top(1) does. The locks with the longest
    /// wait come first. A * marks a lock whose holders have changed since the last refresh. Without a terminal, each
    /// refresh prints a block of text.
    #[command(after_help = include_str!("../man/top.txt"))]
    Top(TopArguments),
    /// Wait until a lock is free.
    ///
    /// Does not join the queue, and acquires nothing: when the command returns, another participant may already have
    /// the lock. Exits with 0 when the lock is free, and with 75 when the time is over.
    #[command(after_help = WAIT_EXAMPLES)]
    Wait(WaitArguments),
    /// Ask the holders of a lock to release it.
    ///
    /// Each holder decides whether it releases the lock. A `zklock run` releases it with --on-revoke term.
    Revoke(RevokeArguments),
    /// Delete the nodes of the holders of a lock.
    ///
    /// Use this verb only if a holder does not respond and its session does not end. The former holder works on until
    /// it notices the loss. Without --yes, only prints what would be deleted, and exits with status 64.
    Break(BreakArguments),
    /// Check everything that a lock needs.
    ///
    /// Checks each server: its name, its port, TLS, the credentials, the session timeout, the round trip and the
    /// version. With a path, it also checks the rights on the path, acquires and releases a test lock below it,
    /// compares the clocks, and looks for nodes that do not belong there. Exits with 0 if nothing fails.
    Doctor(DoctorArguments),
}

const HOLD_EXAMPLES: &str = "\
Examples:
  eval \"$(zklock hold --sh /locks/deploy)\" || exit     until this script ends
  ...
  eval \"$(zklock release --sh)\"                        or earlier

  zklock hold --for 10m /locks/maintenance             for ten minutes";

const WAIT_EXAMPLES: &str = "\
Examples:
  zklock wait -w 5m /locks/deploy && ./start-the-server
  zklock wait -w 0 /locks/deploy || echo busy";

const RUN_USAGE: &str = "\
zklock run [OPTIONS] PATH [--] COMMAND [ARGUMENTS]
       zklock run [OPTIONS] PATH -c TEXT";

const TRY_USAGE: &str = "zklock try [OPTIONS] PATH [[--] COMMAND [ARGUMENTS]]";

const RUN_EXAMPLES: &str = "\
Examples:
  zklock run /locks/nightly -- ./report.sh --all
  zklock run -n -q /locks/nightly -- ./report.sh || test $? -eq 75
  zklock run -s /locks/config -- ./read-config         many readers at the same time
  zklock run -x /locks/config -- ./change-config       one writer, and no readers
  zklock run --semaphore 3 /locks/api -- ./crawl       at most three at the same time
  zklock run --and /locks/b /locks/a -- ./move         both locks, or none
  zklock run --once-per day --retry-failed /locks/nightly -- ./report.sh";

const TRY_EXAMPLES: &str = "\
Examples:
  zklock try /locks/nightly && echo free
  zklock try /locks/nightly -- ./report.sh";

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    #[command(flatten)]
    pub(crate) connection: Connection,
    #[command(flatten)]
    pub(crate) lock: LockArguments,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
    #[command(flatten)]
    pub(crate) job: JobArguments,
    /// The path of the lock. The next word begins the command.
    #[arg(value_name = "PATH")]
    pub(crate) path: OsString,
}

#[derive(Debug, Args)]
pub(crate) struct TryArguments {
    #[command(flatten)]
    pub(crate) connection: Connection,
    #[command(flatten)]
    pub(crate) lock: LockArguments,
    #[command(flatten)]
    pub(crate) job: JobArguments,
    /// The path of the lock. The next word begins the command.
    #[arg(value_name = "PATH")]
    pub(crate) path: OsString,
}

#[derive(Debug, Args)]
pub(crate) struct LsArguments {
    /// Show only the locks that are held or waited for longer than this time, and exit with 75 if there are any.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) longer_than: Option<Duration>,
    /// Show also the nodes that are no locks, or that are free locks.
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Show at most this number of locks.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = number(0..=usize::MAX))]
    pub(crate) limit: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// The path. Default: the root, or the chroot.
    #[arg(default_value = "/")]
    pub(crate) path: String,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArguments {
    /// Show at most this number of participants.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = number(0..=usize::MAX))]
    pub(crate) limit: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// The path of the lock.
    pub(crate) path: String,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Args)]
pub(crate) struct TopArguments {
    /// The time between the end of a refresh and the next one, for example 5s or 500ms. At least 100ms.
    #[arg(short, long, value_name = "TIME", default_value = "2s", value_parser = delay)]
    pub(crate) delay: Duration,
    /// End after this number of refreshes. Default: no limit.
    #[arg(short = 'n', long, value_name = "N", value_parser = number(1..=u64::MAX))]
    pub(crate) iterations: Option<u64>,
    /// The order of the locks.
    #[arg(long, value_name = "ORDER", default_value = "wait")]
    pub(crate) sort: Order,
    /// Show at most this number of locks.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = number(0..=usize::MAX))]
    pub(crate) limit: usize,
    /// Print one JSON object for each refresh, also on a terminal.
    #[arg(long)]
    pub(crate) json: bool,
    /// The path. Default: the root, or the chroot.
    #[arg(default_value = "/")]
    pub(crate) path: String,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Args)]
pub(crate) struct HoldArguments {
    /// Print assignments for a shell, instead of JSON: eval "$(zklock hold --sh PATH)".
    #[arg(long)]
    pub(crate) sh: bool,
    /// Keep the lock until this process ends. Default: the shell that calls the command.
    #[arg(long, value_name = "N", value_parser = number(1..=i32::MAX))]
    pub(crate) pid: Option<i32>,
    /// Keep the lock for this time. Without --pid, the lock is not bound to a process.
    #[arg(long = "for", value_name = "TIME", value_parser = duration::parse)]
    pub(crate) max_hold: Option<Duration>,
    /// The action when the lock is lost: send TERM to the process to which the lock is bound, or nothing.
    #[arg(long, value_name = "ACTION", default_value = "term")]
    pub(crate) on_lost: OnHoldLost,
    /// Print nothing to standard error but errors.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The path of the lock.
    #[arg(value_name = "PATH")]
    pub(crate) path: OsString,
    #[command(flatten)]
    pub(crate) lock: LockArguments,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Args)]
pub(crate) struct ReleaseArguments {
    /// Print commands for a shell that remove the variables of the lock: eval "$(zklock release --sh)".
    #[arg(long)]
    pub(crate) sh: bool,
    /// The process id that `zklock hold` has printed, or the path of its lock. Default: $ZKLOCK_HOLD_PID.
    #[arg(value_name = "PID|PATH", value_parser = HoldName::parse)]
    pub(crate) hold: Option<HoldName>,
}

/// The end of a long help and of a man page: the examples, and the notes.
fn long(examples: &str, notes: &str) -> String {
    format!("{examples}\n\n{notes}")
}

/// What names a hold of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HoldName {
    /// The id of the holder process.
    Pid(i32),
    /// The path of a lock.
    Path(String),
}

impl HoldName {
    fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with('/') {
            return Ok(Self::Path(text.to_owned()));
        }
        text.parse().map(Self::Pid).map_err(|_| "expected a process id, or a path that begins with /".to_owned())
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct WaitArguments {
    /// Print one JSON object when the lock is free.
    #[arg(long)]
    pub(crate) json: bool,
    /// Wait for at most this time, for example 90s or 5m. Default: no limit.
    #[arg(short = 'w', long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) timeout: Option<Duration>,
    /// Wait until a read lock is free: readers may hold the lock, but no writer may hold it or wait for it.
    #[arg(short, long, conflicts_with = "semaphore")]
    pub(crate) shared: bool,
    /// Wait until leases of a semaphore with N leases are free.
    #[arg(long, value_name = "N", value_parser = number(1..=i32::MAX))]
    pub(crate) semaphore: Option<i32>,
    /// The number of leases that must be free.
    #[arg(long, value_name = "K", requires = "semaphore", default_value_t = 1, value_parser = number(1..=i32::MAX))]
    pub(crate) qty: i32,
    /// The path of the lock.
    pub(crate) path: String,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Args)]
pub(crate) struct RevokeArguments {
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// The path of the lock.
    pub(crate) path: String,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Args)]
pub(crate) struct BreakArguments {
    /// Delete the nodes.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Delete this node only, which may also belong to a participant that waits.
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// The path of the lock.
    pub(crate) path: String,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// The path of a lock.
    pub(crate) path: Option<String>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// The ZooKeeper servers, with an optional chroot: host:2181,host:2181/app. Default: $ZKLOCK_SERVERS,
    /// or `servers` in the options file.
    #[arg(long, value_name = "LIST")]
    pub(crate) servers: Option<String>,
    /// Set an option of the library, for example tls.ca=/etc/zk/ca.pem. Also as a variable:
    /// ZKLOCK_TLS_CA=/etc/zk/ca.pem.
    #[arg(short = 'o', long = "option", value_name = "NAME=VALUE", value_parser = assignment)]
    pub(crate) options: Vec<(String, String)>,
    /// Read options from a file with one `name = value` on each line. Default: $ZKLOCK_CONFIG, or else
    /// $XDG_CONFIG_HOME/zklock.conf, or else /etc/zklock.conf.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Lock")]
pub(crate) struct LockArguments {
    /// Acquire also this lock, as a unit with the lock of PATH. The option may be given several times.
    #[arg(long = "and", value_name = "PATH")]
    pub(crate) others: Vec<OsString>,
    /// Acquire the read lock of a read/write lock. Other readers may hold it at the same time.
    #[arg(short, long, conflicts_with_all = ["exclusive", "semaphore"])]
    pub(crate) shared: bool,
    /// Acquire the write lock of a read/write lock. Without -s, -x and --semaphore, the lock is a mutex.
    #[arg(short = 'x', long, visible_short_alias = 'e', conflicts_with = "semaphore")]
    pub(crate) exclusive: bool,
    /// Acquire a semaphore with N leases. All users of the path must give the same N.
    #[arg(long, value_name = "N", value_parser = number(1..=i32::MAX))]
    pub(crate) semaphore: Option<i32>,
    /// The number of leases of the semaphore to acquire.
    #[arg(long, value_name = "K", requires = "semaphore", default_value_t = 1, value_parser = number(1..=i32::MAX))]
    pub(crate) qty: i32,
}

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Waiting")]
pub(crate) struct Waiting {
    /// Do not wait: exit with 75 if the lock is busy.
    #[arg(short, long, visible_alias = "nb", conflicts_with = "timeout")]
    pub(crate) nonblock: bool,
    /// Wait for the lock for at most this time, for example 90s or 5m. Default: no limit.
    #[arg(short = 'w', long, visible_alias = "wait", value_name = "TIME", value_parser = duration::parse)]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Command")]
pub(crate) struct JobArguments {
    /// Run this text with /bin/sh -c, instead of a command with arguments.
    #[arg(short = 'c', value_name = "TEXT")]
    pub(crate) shell: Option<OsString>,
    /// Run the command only if it has not run yet in this period: minute, hour, day, week or month, @hourly, @daily,
    /// @weekly or @monthly, or a time such as 30m or 2h. Otherwise exit with 75.
    #[arg(long, value_name = "PERIOD", value_parser = period)]
    pub(crate) once_per: Option<Period>,
    /// With --once-per: run the command also if its last run in this period failed or was interrupted.
    #[arg(long, requires = "once_per")]
    pub(crate) retry_failed: bool,
    /// With --once-per: the time zone of days, weeks and months, for example Europe/Berlin. Default: the zone of this
    /// host.
    #[arg(long, value_name = "ZONE", requires = "once_per", value_parser = zone)]
    pub(crate) time_zone: Option<String>,
    /// End the command after this time. It gets TERM, and KILL after the grace period.
    #[arg(long = "for", value_name = "TIME", value_parser = duration::parse)]
    pub(crate) max_hold: Option<Duration>,
    /// Do not end the processes that the command leaves behind when it ends. From then on, they run without the lock.
    #[arg(long)]
    pub(crate) leave_running: bool,
    /// The action when the lock is lost: TERM and then KILL, KILL at once, or nothing.
    #[arg(long, value_name = "ACTION", default_value = "term")]
    pub(crate) on_lost: OnLost,
    /// The action when the connection is lost and the lock is still safe: nothing, stop the command until the lock is
    /// confirmed, or end it.
    #[arg(long, value_name = "ACTION", default_value = "continue")]
    pub(crate) on_suspend: OnSuspend,
    /// The action when another participant asks for the lock.
    #[arg(long, value_name = "ACTION", default_value = "ignore")]
    pub(crate) on_revoke: OnRevoke,
    /// The time between TERM and KILL. Default: an eighth of the session timeout; at most a quarter.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) grace: Option<Duration>,
    /// The exit code if the lock is busy or the job has already run.
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 75, value_parser = number(0..=u8::MAX))]
    pub(crate) conflict_exit_code: u8,
    /// The name of the command that other participants see, of at most 60 characters. Default: the name of the program.
    #[arg(long, value_name = "TEXT", value_parser = owner)]
    pub(crate) owner: Option<String>,
    /// Report to systemd, for Type=notify: READY=1 when the command runs under the lock, and STOPPING=1 when it ends.
    #[arg(long)]
    pub(crate) notify: bool,
    /// Print nothing but errors.
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Print each step.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Print events and errors as JSON, one on each line, to standard error.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// TERM, and KILL after the grace period
    Term,
    /// KILL at once
    Kill,
    /// let it run; the exit code is then 80
    Ignore,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnHoldLost {
    /// send TERM
    Term,
    /// do nothing
    Ignore,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnSuspend {
    /// let it run while the lock is certainly held
    Continue,
    /// stop it until the lock is confirmed
    Stop,
    /// end it
    Term,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnRevoke {
    /// let it run
    Ignore,
    /// end it; the exit code is then 82
    Term,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// the longest wait first
    Wait,
    /// the longest queue first
    Queue,
    /// the longest hold first
    Held,
    /// by path
    Path,
}

/// The arguments of one call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) cli: Cli,
    /// The command of `run` and `try`, with its arguments. Empty if no command is given.
    pub(crate) command: Vec<OsString>,
    /// An option between the path and a command that has no `--` before it.
    pub(crate) late_option: Option<OsString>,
}

/// Parses the arguments of the process. In `run` and `try`, the command begins after `--`, or with the first word after the
/// path, except for options. All later words belong to the command.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Call, clap::Error> {
    let (parser, words) = (Cli::command(), arguments.into_iter().collect::<Vec<_>>());
    let has_command = words.get(1).filter(|verb| *verb == "run" || *verb == "try");
    let verb = has_command.and_then(|verb| parser.find_subcommand(verb)).cloned();
    let (own, command, late_option) = match verb {
        Some(verb) => split(&verb, words),
        None => (words, Vec::new(), None),
    };
    let cli = Cli::from_arg_matches(&parser.try_get_matches_from(own)?)?;
    Ok(Call { cli, command, late_option })
}

/// Moves the options of the connection that stand before the verb behind it, where each verb accepts them.
pub(crate) fn verb_first(mut words: Vec<OsString>) -> Vec<OsString> {
    let mut verb_at = 1;
    while let Some(word) = words.get(verb_at).and_then(|word| word.to_str()) {
        let has_value = |option: &&str| word.strip_prefix(*option).is_some_and(|value| value.starts_with('='));
        verb_at += match word {
            "-o" | "--option" | "--servers" | "--config" => 2,
            _ if word.starts_with("-o") || ["--option", "--servers", "--config"].iter().any(has_value) => 1,
            _ => break,
        };
    }
    if let Some(words) = words.get_mut(1..=verb_at) {
        words.rotate_right(1);
    }
    words
}

/// Separates the words of `run` and `try` from the command. Also returns the first option after the path, if the command has
/// no `--` before it.
fn split(verb: &clap::Command, words: Vec<OsString>) -> (Vec<OsString>, Vec<OsString>, Option<OsString>) {
    let takes_value = |is_named: &dyn Fn(&clap::Arg) -> bool| {
        verb.get_arguments().any(|arg| is_named(arg) && arg.get_action().takes_values())
    };
    let mut words = words.into_iter();
    let mut own: Vec<OsString> = words.by_ref().take(2).collect();
    let (mut has_path, mut late_option) = (false, None);
    while let Some(word) = words.next() {
        if word == "--" {
            return (own, words.collect(), None);
        }
        let Some(option) = word.to_str().filter(|word| word.len() > 1 && word.starts_with('-')) else {
            if has_path {
                return (own, std::iter::once(word).chain(words).collect(), late_option);
            }
            has_path = true;
            own.push(word);
            continue;
        };
        let is_value_next = if let Some(name) = option.strip_prefix("--") {
            takes_value(&|arg| arg.get_long_and_visible_aliases().is_some_and(|names| names.contains(&name)))
        } else {
            // The value of a short option can be a part of the same word.
            let with_value =
                option.chars().skip(1).position(|short| takes_value(&|arg| arg.get_short() == Some(short)));
            with_value.is_some_and(|at| at + 2 == option.chars().count())
        };
        if has_path {
            late_option.get_or_insert_with(|| word.clone());
        }
        own.push(word);
        own.extend(words.by_ref().take(usize::from(is_value_next)));
    }
    (own, Vec::new(), None)
}

/// Makes a parser for the whole numbers of a range.
fn number<T: FromStr + PartialOrd + Display + Clone>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let (least, most) = (range.start(), range.end());
        match text.parse() {
            Ok(number) if range.contains(&number) => Ok(number),
            Ok(number) => Err(format!("{number} is not in {least}..={most}")),
            Err(_) => Err(format!("expected a whole number from {least} to {most}")),
        }
    }
}

fn assignment(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn delay(text: &str) -> Result<Duration, String> {
    const SHORTEST: Duration = Duration::from_millis(100);
    let delay = duration::parse(text)?;
    if delay < SHORTEST { Err("expected at least 100ms".to_owned()) } else { Ok(delay) }
}

fn period(text: &str) -> Result<Period, String> {
    Period::new(text).map_err(|error| expected(&error))
}

fn zone(name: &str) -> Result<String, String> {
    // The zone is valid for all periods, or for none.
    let period = Period::new("day").and_then(|period| period.in_zone(name));
    period.map(|_| name.to_owned()).map_err(|error| expected(&error))
}

/// Returns the part of an error of the library that says what is expected. The value is already in the message of clap.
fn expected(error: &Error) -> String {
    let message = error.message();
    message.split_once("; ").map_or(message, |(_, expected)| expected).to_owned()
}

fn owner(text: &str) -> Result<String, String> {
    let length = text.chars().count();
    if (1..=owner::MAX_LENGTH).contains(&length) && !text.chars().any(char::is_control) {
        return Ok(text.to_owned());
    }
    Err(format!("expected 1 to {} characters without control characters", owner::MAX_LENGTH))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the path, the command, and the other arguments.
    fn run(line: &str) -> (String, String, RunArguments) {
        let call = parse(line.split(' ').map(OsString::from)).unwrap();
        let Verb::Run(run) = call.cli.verb else { panic!("{line}") };
        let command: Vec<_> = call.command.iter().map(|word| word.to_str().unwrap()).collect();
        (run.path.to_str().unwrap().to_owned(), command.join(" "), run)
    }

    #[test]
    fn the_command_begins_after_the_path_and_its_words_are_its_own() {
        for (line, command) in [
            ("zklock run -n /a /bin/ls -n", "/bin/ls -n"),
            ("zklock run -n /a -- /bin/ls -n", "/bin/ls -n"),
            ("zklock run /a -n -- /bin/ls -w --", "/bin/ls -w --"),
            ("zklock run -n /a /opt/sandbox -- echo dangerous", "/opt/sandbox -- echo dangerous"),
            ("zklock run -n /a /usr/bin/sudo -n -- job", "/usr/bin/sudo -n -- job"),
            ("zklock run -n /a -- -- job", "-- job"),
            ("zklock run -n /a - job", "- job"),
            ("zklock run -n /a", ""),
            ("zklock run --nb /a job", "job"),
            ("zklock run -e --nonblock /a job", "job"),
        ] {
            let (path, found, arguments) = run(line);
            assert_eq!((&*path, &*found, arguments.waiting.nonblock), ("/a", command, true), "{line}");
        }
        let (path, command, arguments) = run("zklock run --and /b /a --and=/c -- job --and /d");
        assert_eq!((&*path, &*command, arguments.lock.others), ("/a", "job --and /d", vec!["/b".into(), "/c".into()]));
        let late = |line: &str| parse(line.split(' ').map(OsString::from)).unwrap().late_option;
        assert_eq!(late("zklock run /a -n -o a=b job"), Some("-n".into()));
        assert_eq!((late("zklock run /a -n -- job"), late("zklock run /a -c job")), (None, None));
    }

    #[test]
    fn a_short_option_may_be_followed_by_its_value_without_a_space() {
        for options in ["-w5s -E 9", "-w 5s -E9", "-w=5s -E=9", "-w5s --conflict-exit-code 9", "--timeout=5s -E9"] {
            for line in [format!("zklock run {options} /a ls -w7s"), format!("zklock run {options} /a -- ls -w7s")] {
                let (path, command, arguments) = run(&line);
                assert_eq!((&*path, &*command), ("/a", "ls -w7s"), "{line}");
                assert_eq!(arguments.waiting.timeout, Some(Duration::from_secs(5)), "{line}");
                assert_eq!(arguments.job.conflict_exit_code, 9, "{line}");
            }
        }
        for line in ["zklock run -sw5s /a job", "zklock run --wait 5s /a job", "zklock run --wait=5s /a job"] {
            let (path, command, arguments) = run(line);
            assert_eq!((&*path, &*command, arguments.waiting.timeout), ("/a", "job", Some(Duration::from_secs(5))));
        }
    }

    #[test]
    fn options_of_the_connection_may_stand_before_the_verb() {
        let first = |line: &str| {
            let words = verb_first(line.split(' ').map(OsString::from).collect());
            words.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        for (line, expected) in [
            ("zklock --servers h:1 -o a=b run /a job", "zklock run --servers h:1 -o a=b /a job"),
            ("zklock --servers=h:1 -oa=b --config=f ls", "zklock ls --servers=h:1 -oa=b --config=f"),
            ("zklock run --servers h:1 /a", "zklock run --servers h:1 /a"),
            ("zklock --help", "zklock --help"),
            ("zklock --servers", "zklock --servers"),
        ] {
            assert_eq!(first(line), expected);
        }
    }

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }
}
