//! `zklock top`: the locks below a path, again and again. A terminal shows a live view. Without a terminal, each
//! refresh is a block of text or a line of JSON.

mod live;
mod page;
mod screen;

use std::io::stdout;

use rustix::termios::isatty;
use zklock::Status;

use self::page::{Page, sort};
use super::connect_with;
use super::table::{answer_in_part, width};
use super::walk::{Scope, Walk};
use crate::cli::TopArguments;
use crate::console::{Console, Verbosity};
use crate::exit::{Exit, Failure};
use crate::run::inbox::end_first_process_on_signal;
use crate::settings::Settings;

/// Shows the locks until the user ends the verb.
pub(crate) fn run(arguments: &TopArguments) -> Result<Exit, Failure> {
    let settings = Settings::of_process(&arguments.connection)?;
    let scope = Scope { root: arguments.path.clone(), limit: arguments.limit, has_directories: false };
    let knows_sequences = std::env::var_os("TERM").is_some_and(|name| !name.is_empty() && name != "dumb");
    if isatty(stdout()) && knows_sequences && !arguments.json {
        live::run(arguments, &settings, scope)
    } else {
        end_first_process_on_signal()?;
        print_blocks(arguments, &settings, &scope)
    }
}

/// Prints each refresh. If no server answers, the next refresh tries again, and the exit code is that of the last
/// refresh.
fn print_blocks(arguments: &TopArguments, settings: &Settings, scope: &Scope) -> Result<Exit, Failure> {
    let console = Console::new(Verbosity::Normal, arguments.json);
    let client = connect_with(settings, None, &console)?;
    let (mut before, mut done) = (None, 0);
    loop {
        done += 1;
        let is_last = arguments.iterations == Some(done);
        match Walk::read(&client, scope) {
            Ok(walk) => {
                let text = if arguments.json {
                    format!("{}\n", walk.to_json(sort(&walk, arguments.sort)))
                } else {
                    let page = Page {
                        walk: &walk,
                        before: before.as_ref(),
                        servers: &settings.servers,
                        order: arguments.sort,
                    };
                    let gap = if done > 1 { "\n" } else { "" };
                    format!("{gap}{}", page.show(&page.cost(), width()))
                };
                if !answer_in_part(&text)? || is_last {
                    return Ok(Exit::Command(0));
                }
                before = Some(walk);
            }
            Err(error) if error.status() == Status::Connection && !is_last => console.warn(error.message()),
            Err(error) => return Err(error.into()),
        }
        std::thread::sleep(arguments.delay);
    }
}
