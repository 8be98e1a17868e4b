//! `zklock status`: the whole queue of one lock, and the last runs of its job.

use jiff::tz::TimeZone;
use serde_json::{Value, json};
use zklock::internal::past_run_json;
use zklock::{Client, PastRun, RunResult, Status};

use super::connect;
use super::table::{Table, answer, width};
use crate::cli::StatusArguments;
use crate::clock::{show_time, timestamp, wall_time};
use crate::duration::age;
use crate::exit::{Exit, Failure};
use crate::owner::printable_line;
use crate::survey::{Content, Entry, Kind, Role, Survey, is_of_one_object, read_contents};

/// Shows the queue.
pub(crate) fn run(arguments: &StatusArguments) -> Result<Exit, Failure> {
    let client = connect(&arguments.connection)?;
    let mut survey = Survey::of_lock(&client, &arguments.path)?;
    read_contents(&client, survey.entries.iter_mut().take(arguments.limit))?;
    let runs = read_runs(&client, &arguments.path)?;
    answer(&if arguments.json {
        format!("{}\n", to_json(&survey, &runs, arguments.limit))
    } else {
        show(&survey, &runs, arguments.limit)
    })?;
    Ok(Exit::Command(0))
}

/// The runs in the record. The error says that this client cannot read the node, for example because an access control list
/// forbids it, or that the node contains other data.
type Runs = Result<Vec<PastRun>, Failure>;

fn read_runs(client: &Client, path: &str) -> Result<Runs, Failure> {
    match client.past_runs(path) {
        Err(error) if is_of_one_object(&error) || error.status() == Status::Invalid => Ok(Err(error.into())),
        runs => Ok(Ok(runs?)),
    }
}

/// Returns the runs of the record, and why it is not readable or not valid.
fn runs_and_error(runs: &Runs) -> (&[PastRun], Option<&str>) {
    match runs {
        Ok(runs) => (runs, None),
        Err(failure) => (&[], Some(&failure.message)),
    }
}

fn show(survey: &Survey, runs: &Runs, limit: usize) -> String {
    let now = wall_time();
    let mut text = format!("{}: {}\n", survey.path, summary(survey));
    if !survey.entries.is_empty() {
        let mut table = Table::new(["", "ROLE", "SINCE", "TOKEN", "PARTICIPANT"]);
        for (at, entry) in survey.entries.iter().take(limit).enumerate() {
            let token = entry.content.as_ref().map(|content| content.token.to_string()).unwrap_or_default();
            table.add([(at + 1).to_string(), entry.role_name(), age(entry.since(), now), token, participant(entry)]);
        }
        text.push_str(&table.show(width(), &[6, 12, 8, 19]));
    }
    let hidden = survey.entries.len().saturating_sub(limit);
    if hidden > 0 {
        let all = survey.entries.len();
        text.push_str(&match hidden {
            1 => format!("... 1 more participant is not shown; --limit {all} shows it\n"),
            _ => format!("... {hidden} more participants are not shown; --limit {all} shows them\n"),
        });
    }
    let (runs, error) = runs_and_error(runs);
    if let Some(error) = error {
        text.push_str(&format!("\n{error}\n"));
    }
    if !runs.is_empty() {
        let zone = TimeZone::system();
        let mut table = Table::new(["PERIOD", "BEGAN", "TOOK", "BY", "RESULT"]);
        for run in runs {
            let took = run.ended.map(|ended| age(Some(timestamp(run.started)), timestamp(ended))).unwrap_or_default();
            let times = [run.period, run.started].map(|time| show_time(timestamp(time), &zone));
            let [period, began] = times.map(|time| time.chars().take(19).collect());
            table.add([period, began, took, printable_line(&run.owner), result(run)]);
        }
        text.push_str(&format!("\nlast runs of the job:\n{}", table.show(width(), &[19, 19, 6, 20])));
    }
    text
}

/// Describes a lock in one line.
fn summary(survey: &Survey) -> String {
    let Some(kind) = survey.kind else {
        return match (survey.exists, survey.unreadable()) {
            (false, _) => "free; the node does not exist".to_owned(),
            (true, denied) if denied.is_empty() => "free".to_owned(),
            (true, denied) => format!("no participant is visible{denied}"),
        };
    };
    let (holders, waiting) = (survey.count(Role::Holds), survey.waiting());
    let foreign = match survey.foreign() {
        0 => String::new(),
        1 => "; 1 of them uses another kind of lock, and does not exclude the others".to_owned(),
        count => format!("; {count} of them use another kind of lock, and do not exclude the others"),
    };
    let holders = if holders == 1 { "1 holder".to_owned() } else { format!("{holders} holders") };
    format!("{}, {holders}, {waiting} waiting{foreign}{}", kind.name(), survey.unreadable())
}

fn participant(entry: &Entry) -> String {
    let user = entry.content.as_ref().and_then(|content| content.who.owner.as_ref()).map(|owner| &owner.user);
    let user = user.map(|user| format!(" by {user}")).unwrap_or_default();
    let foreign = if entry.is_own_kind { String::new() } else { format!(" [{}]", entry.kind.name()) };
    let permanent = if entry.content.as_ref().is_some_and(Content::is_permanent) { " [not ephemeral]" } else { "" };
    format!("{}{user}{foreign}{permanent}", entry.who())
}

fn result(run: &PastRun) -> String {
    match &run.result {
        RunResult::Running => "running or interrupted".to_owned(),
        RunResult::Succeeded => "succeeded".to_owned(),
        RunResult::Failed(how) => format!("failed: {}", printable_line(how)),
    }
}

fn to_json(survey: &Survey, runs: &Runs, limit: usize) -> Value {
    let (runs, error) = runs_and_error(runs);
    let shown = survey.entries.iter().take(limit);
    json!({
        "path": survey.path,
        "exists": survey.exists,
        "kind": survey.kind.map(Kind::name),
        "holders": survey.count(Role::Holds),
        "waiting": survey.waiting(),
        "foreign": survey.foreign(),
        "not_readable": survey.denied,
        "queue": shown.map(Entry::to_json).collect::<Vec<_>>(),
        "not_shown": survey.entries.len().saturating_sub(limit),
        "runs": runs.iter().map(past_run_json).collect::<Vec<_>>(),
        "runs_error": error,
    })
}
