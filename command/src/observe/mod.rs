//! The verbs that look at locks and take no part in them.

pub(crate) mod await_free;
pub(crate) mod ls;
pub(crate) mod status;
pub(crate) mod table;
pub(crate) mod top;
mod walk;

use zklock::Client;

use crate::cli::Connection;
use crate::exit::Failure;
use crate::settings::Settings;

/// Connects with the settings of the user.
pub(crate) fn connect(connection: &Connection) -> Result<Client, Failure> {
    let settings = Settings::read(connection, |name| std::env::var_os(name))?;
    Ok(Client::connect(&settings.servers, &settings.config)?)
}
