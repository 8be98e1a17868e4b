//! `zklock break`: deletes the nodes of the holders of a lock, or one node of its queue.

use serde_json::{Value, json};

use crate::cli::BreakArguments;
use crate::exit::{Exit, Failure};
use crate::observe::connect;
use crate::observe::table::answer;
use crate::owner::printable_line;
use crate::survey::{Entry, Survey, read_contents};

/// Deletes nodes, or says which nodes it would delete.
pub(crate) fn run(arguments: &BreakArguments) -> Result<Exit, Failure> {
    let client = connect(&arguments.connection)?;
    let mut survey = Survey::of_lock(&client, &arguments.path)?;
    let chosen = |entry: &&mut Entry| match &arguments.node {
        Some(name) => entry.node.rsplit('/').next() == Some(name.rsplit('/').next().unwrap_or(name)),
        None => entry.is_holder(),
    };
    let mut nodes: Vec<&mut Entry> = survey.entries.iter_mut().filter(chosen).collect();
    if let (Some(name), true) = (&arguments.node, nodes.is_empty()) {
        let message = format!(
            "--node {name}: no participant of {} has this node; zklock status shows the participants",
            arguments.path
        );
        return Err(Failure::usage(message));
    }
    if nodes.is_empty() {
        let denied = survey.unreadable();
        if arguments.json {
            answer(&to_json(arguments, &[]))?;
            return Ok(Exit::Command(0));
        }
        answer(&format!("{}: no participant holds the lock, so there is nothing to delete{denied}\n", arguments.path))?;
        return Ok(Exit::Command(0));
    }
    read_contents(&client, nodes.iter_mut().map(|entry| &mut **entry))?;
    if !arguments.yes {
        if arguments.json {
            answer(&to_json(arguments, &nodes))?;
        }
        for entry in nodes.iter().filter(|_| !arguments.json) {
            answer(&format!("would delete {} of {}\n", printable_line(&entry.node), entry.who()))?;
        }
        return Err(Failure::usage("nothing was deleted; the option --yes deletes the nodes"));
    }
    // A failure of standard output does not keep the other nodes.
    let (mut newest, mut printed) = (None, Ok(()));
    for entry in &nodes {
        client.delete_node(&entry.node)?;
        if entry.is_holder() {
            newest = newest.max(Some(entry.content.as_ref().map(|content| content.token)));
        }
        let line = format!("deleted {} of {}\n", printable_line(&entry.node), entry.who());
        printed = printed.and_then(|()| answer(if arguments.json { "" } else { &line }));
    }
    printed?;
    if arguments.json {
        answer(&to_json(arguments, &nodes))?;
    } else if let Some(token) = newest {
        let token = token.map(|token| format!(", here {token}")).unwrap_or_default();
        answer(&format!(
            "A former holder works on until it notices the loss, and another participant can already hold\n\
         the lock. Only a data store that compares fencing tokens refuses its writes: it must accept no\n\
         token up to that of the former holder{token}.\n"
        ))?;
    }
    Ok(Exit::Command(0))
}

/// Describes the nodes for a program.
fn to_json(arguments: &BreakArguments, nodes: &[&mut Entry]) -> String {
    let nodes: Vec<Value> = nodes.iter().map(|entry| entry.to_json()).collect();
    format!("{}\n", json!({"path": arguments.path, "deleted": arguments.yes, "nodes": nodes}))
}
