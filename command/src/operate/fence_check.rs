//! `zklock fence-check`: checks whether a fencing token belongs to a holder of a lock.

use zklock::Client;

use crate::cli::FenceCheckArguments;
use crate::exit::{Exit, Failure};
use crate::observe::connect;
use crate::survey::{Entry, Survey, read_contents};

/// Checks the token. The library decides whether the token is valid; the queue only explains why it is not.
pub(crate) fn run(arguments: &FenceCheckArguments) -> Result<Exit, Failure> {
    let (path, token) = (&arguments.path, arguments.token);
    let client = connect(&arguments.connection)?;
    if client.fence_check(path, token)? {
        return Ok(Exit::Command(0));
    }
    let survey = read_queue(&client, path)?;
    let token_of = |entry: &Entry| entry.content.as_ref().map(|content| content.token);
    if let Some(owner) = survey.entries.iter().find(|entry| token_of(entry) == Some(token)) {
        return Err(if owner.queue.is_of_curator() {
            Failure::new(Exit::Busy, format!("the token {token} belongs to a participant that waits for {path}"))
        } else {
            let kind = owner.kind.name();
            Failure::new(
                Exit::Foreign,
                format!("the token {token} belongs to a node of {kind}; zklock does not check such tokens"),
            )
        });
    }
    let newest = survey.holders().filter_map(token_of).max();
    let newest =
        newest.map_or_else(|| "no participant holds it".to_owned(), |newest| format!("the newest holder has {newest}"));
    Err(Failure::new(Exit::Lost, format!("no holder of {path} has the token {token}; {newest}")))
}

/// The number of participants whose tokens are compared.
const MOST_READ: usize = 1000;

fn read_queue(client: &Client, path: &str) -> Result<Survey, Failure> {
    let mut survey = Survey::read(client, path)?;
    read_contents(client, survey.entries.iter_mut().take(MOST_READ))?;
    Ok(survey)
}
