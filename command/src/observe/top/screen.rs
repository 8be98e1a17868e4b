//! The terminal of a live view. While the view is shown, the terminal has a second screen, no cursor, and passes each
//! key on at once. The sequences are those of ECMA-48 and xterm, which all usual terminals know.

use std::cell::Cell;
use std::fs::File;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::read;
use rustix::stdio::{stdin, stdout};
use rustix::termios::{LocalModes, OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

use crate::exit::Failure;
use crate::output::Output;
use crate::process::is_in_background;

/// Shows the second screen, hides the cursor, and cuts lines off instead of continuing them on the next line.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// The size of a terminal that does not know its size.
const USUAL_SIZE: (usize, usize) = (24, 80);
/// The end waits for at most this time until the terminal accepts the output.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// The terminal. Dropping it restores the terminal.
#[derive(Debug)]
pub(crate) struct Screen {
    /// A thread writes to the terminal, because a terminal that accepts nothing must not delay the reaction to a
    /// signal.
    output: Output,
    /// The modes before the start, if standard input is a terminal.
    modes: Option<Termios>,
    has_keyboard: Cell<bool>,
    is_shown: Cell<bool>,
}

impl Screen {
    /// Opens the terminal of standard output. The first [`draw`](Self::draw) changes it.
    pub(crate) fn open() -> Result<Self, Failure> {
        let terminal = stdout().try_clone_to_owned().map_err(failed)?;
        let output = Output::start(File::from(terminal), |_| String::new());
        let output = output.ok_or_else(|| failed("the machine has no more threads"))?;
        let modes = isatty(stdin()).then(|| tcgetattr(stdin())).transpose().map_err(failed)?;
        Ok(Self { output, has_keyboard: Cell::new(modes.is_some()), modes, is_shown: Cell::new(false) })
    }

    /// Returns the numbers of lines and columns.
    pub(crate) fn size(&self) -> Result<(usize, usize), Failure> {
        let size = tcgetwinsize(stdout()).map_err(failed)?;
        let size = (usize::from(size.ws_row), usize::from(size.ws_col));
        Ok(if size.0 == 0 || size.1 == 0 { USUAL_SIZE } else { size })
    }

    /// Replaces what the terminal shows. Returns false if the terminal has not accepted the previous lines yet. It then
    /// keeps showing them, and the caller must draw again later.
    pub(crate) fn draw(&self, lines: &[&str]) -> Result<bool, Failure> {
        if !self.output.wait_until_written(Duration::ZERO) {
            return Ok(false);
        }
        let start = if self.is_shown.get() { "" } else { ENTER };
        if !self.is_shown.get() {
            self.enter()?;
        }
        self.output.push(format!("{start}\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\n")));
        Ok(true)
    }

    /// Changes the modes of the terminal. The kernel stops a job in the background, until the user continues it in the
    /// foreground.
    fn enter(&self) -> Result<(), Failure> {
        if let Some(modes) = &self.modes {
            let mut modes = modes.clone();
            modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            tcsetattr(stdin(), OptionalActions::Now, &modes).map_err(failed)?;
        }
        self.is_shown.set(true);
        Ok(())
    }

    /// Restores the terminal. In the background, the terminal belongs to another job, and the shell has restored it.
    pub(crate) fn leave(&self) {
        if !self.is_shown.replace(false) || is_in_background(stdout()) {
            return;
        }
        self.output.push(LEAVE.to_owned());
        self.output.wait_until_written(LAST_OUTPUT);
        if let Some(modes) = &self.modes {
            // The terminal may be gone.
            let _ = tcsetattr(stdin(), OptionalActions::Now, modes);
        }
    }

    /// Makes the next [`draw`](Self::draw) change the terminal again, because another program may have changed it.
    pub(crate) fn forget(&self) {
        self.is_shown.set(false);
    }

    /// Returns the keyboard, for poll.
    pub(crate) fn keyboard(&self) -> Option<PollFd<'static>> {
        self.has_keyboard.get().then(|| PollFd::from_borrowed_fd(stdin(), PollFlags::IN))
    }

    /// Returns the keys that the user has pressed.
    pub(crate) fn keys(&self) -> Vec<u8> {
        let mut ready: Vec<PollFd<'_>> = self.keyboard().into_iter().collect();
        if !matches!(poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..)) {
            return Vec::new();
        }
        let mut keys = [0; 64];
        match read(stdin(), &mut keys) {
            Ok(length @ 1..) => keys.get(..length).unwrap_or_default().to_vec(),
            _ => {
                self.has_keyboard.set(false);
                Vec::new()
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::system("using the terminal", error)
}
