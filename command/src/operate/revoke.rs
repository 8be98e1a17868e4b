//! `zklock revoke`: asks the holders of a lock to release it (Curator's `Revoker`).

use serde_json::json;
use zklock::{Client, Result as ZkResult};

use crate::cli::RevokeArguments;
use crate::exit::{Exit, Failure};
use crate::observe::connect;
use crate::observe::table::answer;
use crate::owner::{REVOKE, printable_line};
use crate::survey::{Entry, Survey, read_contents};

/// Asks all holders.
pub(crate) fn run(arguments: &RevokeArguments) -> Result<Exit, Failure> {
    let client = connect(&arguments.connection)?;
    let mut survey = Survey::of_lock(&client, &arguments.path)?;
    // Only zklock and Curator react to a request.
    let (mut asked, mut others): (Vec<&mut Entry>, Vec<&mut Entry>) =
        survey.entries.iter_mut().filter(|entry| entry.is_holder()).partition(|entry| entry.kind.is_of_curator());
    if asked.is_empty() && others.is_empty() && !arguments.json {
        answer(&format!("{}: no participant holds the lock{}\n", arguments.path, survey.unreadable()))?;
        return Ok(Exit::Command(0));
    }
    // The request replaces the data of the node, which names the holder.
    read_contents(&client, asked.iter_mut().map(|entry| &mut **entry))?;
    read_contents(&client, others.iter_mut().map(|entry| &mut **entry))?;
    // A failure of standard output does not keep the other holders from being asked.
    let mut printed = Ok(());
    for entry in &asked {
        ask(&client, entry)?;
        let line = format!("asked {} to release {}\n", entry.who(), printable_line(&entry.node));
        printed = printed.and_then(|()| answer(if arguments.json { "" } else { &line }));
    }
    if arguments.json {
        let list = |entries: &[&mut Entry]| entries.iter().map(|entry| entry.to_json()).collect::<Vec<_>>();
        let (asked, not_asked) = (list(&asked), list(&others));
        printed = answer(&format!("{}\n", json!({"path": arguments.path, "asked": asked, "not_asked": not_asked})));
    }
    if let Some(other) = others.first() {
        let message = format!(
            "{} of {} holds the lock, and does not understand such a request; zklock break would delete its node",
            other.who(),
            other.kind.name()
        );
        return Err(Failure::new(Exit::Foreign, message));
    }
    printed.map(|()| Exit::Command(0))
}

/// Asks a holder. The request to a `zklock` contains what the holder has written about itself, so that the holder remains
/// visible. Curator accepts only the plain request.
fn ask(client: &Client, entry: &Entry) -> ZkResult<()> {
    if entry.content.as_ref().is_none_or(|content| content.who.owner.is_none()) {
        return client.revoke(&entry.node);
    }
    while let Some(node) = client.read_node(&entry.node)? {
        let before = node.data.strip_prefix(REVOKE.as_bytes()).unwrap_or(&node.data);
        let data = [REVOKE.as_bytes(), before].concat();
        // The holder may have written the time of its acquire meanwhile.
        if client.write_node(&entry.node, &entry.node, &data, Some(node.version))?.is_some() {
            break;
        }
    }
    Ok(())
}
