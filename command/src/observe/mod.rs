//! The verbs that look at locks and take no part in them.

pub(crate) mod await_free;
pub(crate) mod ls;
pub(crate) mod status;
pub(crate) mod survey;
pub(crate) mod table;
pub(crate) mod top;
mod walk;

use std::time::Duration;

use jiff::Timestamp;
use zklock::Client;

use crate::cli::Connection;
use crate::duration;
use crate::exit::Failure;
use crate::settings::Settings;

/// Connects with the settings of the user.
pub(crate) fn connect(connection: &Connection) -> Result<Client, Failure> {
    let settings = Settings::read(connection, |name| std::env::var_os(name))?;
    Ok(Client::connect(&settings.servers, &settings.config)?)
}

/// Writes how long ago something happened. The clock of the server can be ahead of the clock of this host.
pub(crate) fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    let Some(since) = since else { return String::new() };
    let age = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    duration::show(Duration::from_secs(age.as_secs()))
}
