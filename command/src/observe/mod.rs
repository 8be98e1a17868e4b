//! The verbs that look at locks and take no part in them.

pub(crate) mod await_free;
pub(crate) mod ls;
pub(crate) mod status;
pub(crate) mod table;
pub(crate) mod top;
mod walk;

use std::time::Duration;

use zklock::Client;

use crate::cli::Connection;
use crate::clock::BootTime;
use crate::console::{Console, Verbosity};
use crate::exit::Failure;
use crate::run::progress::TICK;
use crate::settings::Settings;

/// Connects with the settings of the user.
pub(crate) fn connect(connection: &Connection) -> Result<Client, Failure> {
    let settings = Settings::of_process(connection)?;
    connect_with(&settings, None, &Console::new(Verbosity::Normal, false))
}

/// Connects within the time limit of the call, and shows on a terminal that this takes long.
pub(crate) fn connect_with(
    settings: &Settings,
    timeout: Option<Duration>,
    console: &Console,
) -> Result<Client, Failure> {
    settings.warn(console);
    let started = BootTime::now();
    let connecting = Client::start_connect(&settings.servers, &settings.config_within(timeout))?;
    let connected = loop {
        if let Some(connected) = connecting.wait_for(TICK) {
            break connected;
        }
        console.connecting(&settings.servers, BootTime::now() - started);
    };
    console.clear();
    Ok(connected?)
}
