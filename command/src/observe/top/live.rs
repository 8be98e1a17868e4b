//! The live view on a terminal: it refreshes by itself and handles keys. A thread asks the servers, so that the view
//! reacts to keys and signals while no server answers.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::Builder;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use zklock::{Client, ClientState, Result as ZkResult, Status};

use super::page::Page;
use super::screen::Screen;
use crate::cli::{Order, TopArguments};
use crate::clock::{BootTime, show_time, wall_time};
use crate::console::{Console, Verbosity};
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::observe::table::{answer, width};
use crate::observe::walk::{Scope, Walk};
use crate::process::{has_job_control, stop_self};
use crate::run::acquire::connect;
use crate::run::inbox::Inbox;
use crate::run::signals::{self, Received};
use crate::settings::Settings;

const KEYS: &str = "q: end   space: refresh   s: sort   p: pause";
/// The time between two frames while the view shows a growing duration.
const TICK: Duration = Duration::from_secs(1);
/// The time before the view tries to draw again, if the terminal has not accepted the previous frame.
const REDRAW: Duration = Duration::from_millis(100);

/// Shows the view until the user ends it.
pub(crate) fn run(arguments: &TopArguments, settings: &Settings, scope: Scope) -> Result<Exit, Failure> {
    let (signals, _) = signals::block()?;
    let inbox = Inbox::new(signals)?;
    let console = Console::new(Verbosity::Normal, false);
    let client = connect(settings, None, &console, &inbox, |limit| {
        inbox.wait_with(Vec::new(), limit)?;
        while let Some(received) = inbox.signal()? {
            handle_signal(received, || {})?;
        }
        Ok(())
    })?;
    let mut view = View {
        arguments,
        servers: &settings.servers,
        client: &client,
        scope,
        inbox: &inbox,
        screen: Screen::open()?,
        order: arguments.sort,
        is_paused: false,
        next_at: Some(BootTime::now()),
        refresh: None,
        left: arguments.iterations,
        shown: None,
        before: None,
        lost_since: None,
    };
    let result = view.run();
    drop(view);
    if client.state()? == ClientState::Connected {
        // The session has no nodes. If the close fails, the servers end the session later.
        let _ = client.close();
    } else {
        // The end of the process does not wait for servers that do not answer.
        let _ = client.start_close();
    }
    result
}

/// Ends or stops this process as the signal demands. `before_stop` restores the terminal.
fn handle_signal(received: Received, before_stop: impl Fn()) -> Result<(), Failure> {
    match received.signal {
        signal if received.is_ending() => Err(Failure::new(Exit::Signal(signal), "")),
        libc::SIGTSTP if received.is_from_terminal && !has_job_control() => Ok(()),
        libc::SIGTSTP => {
            before_stop();
            stop_self()
        }
        _ => Ok(()),
    }
}

/// A refresh in progress.
struct Refresh {
    started: BootTime,
    result: Receiver<ZkResult<Walk>>,
}

struct View<'a> {
    arguments: &'a TopArguments,
    servers: &'a str,
    client: &'a Client,
    scope: Scope,
    inbox: &'a Inbox,
    screen: Screen,
    order: Order,
    is_paused: bool,
    /// The time of the next refresh. `None` if a refresh runs, or the view is paused.
    next_at: Option<BootTime>,
    refresh: Option<Refresh>,
    /// The number of refreshes before the end, if the user has given one.
    left: Option<u64>,
    shown: Option<Walk>,
    /// The result of the refresh before.
    before: Option<Walk>,
    /// When the connection was lost.
    lost_since: Option<Timestamp>,
}

impl View<'_> {
    fn run(&mut self) -> Result<Exit, Failure> {
        loop {
            self.take_result()?;
            self.lost_since = match self.client.state()? {
                ClientState::Connected => None,
                _ => self.lost_since.or_else(|| Some(wall_time())),
            };
            if self.left == Some(0) {
                self.screen.leave();
                answer(&self.page(width()))?;
                return Ok(Exit::Command(0));
            }
            if self.next_at.is_some_and(|next_at| next_at <= BootTime::now()) {
                self.start_refresh()?;
            }
            let is_drawn = self.draw()?;
            self.wait(is_drawn)?;
            for key in self.screen.keys() {
                match key {
                    b'q' => return Ok(Exit::Command(0)),
                    b' ' if self.refresh.is_none() => self.next_at = Some(BootTime::now()),
                    b's' => self.order = self.order.next(),
                    b'p' => self.pause_or_continue(),
                    _ => {}
                }
            }
        }
    }

    fn start_refresh(&mut self) -> Result<(), Failure> {
        let (client, scope, waker) = (self.client.clone(), self.scope.clone(), self.inbox.waker());
        let (sender, result) = channel();
        let read = move || {
            // The view may have ended.
            let _ = sender.send(Walk::read(&client, &scope));
            waker.wake();
        };
        let thread = Builder::new().name("zklock-refresh".to_owned()).spawn(read);
        thread.map_err(|error| Failure::system("starting a thread", error))?;
        (self.refresh, self.next_at) = (Some(Refresh { started: BootTime::now(), result }), None);
        Ok(())
    }

    /// Takes the result of a refresh that has ended. If no server has answered, the next refresh tries again.
    fn take_result(&mut self) -> Result<(), Failure> {
        let Some(refresh) = &self.refresh else { return Ok(()) };
        let walk = match refresh.result.try_recv() {
            Err(TryRecvError::Empty) => return Ok(()),
            Err(TryRecvError::Disconnected) => return Err(Failure::new(Exit::Internal, "the refresh has failed")),
            Ok(walk) => walk,
        };
        self.left = self.left.map(|left| left.saturating_sub(1));
        match walk {
            Err(error) if error.status() == Status::Connection && self.left != Some(0) => {}
            walk => self.before = self.shown.replace(walk?),
        }
        self.refresh = None;
        self.next_at = (!self.is_paused).then(|| BootTime::now() + self.arguments.delay);
        Ok(())
    }

    fn pause_or_continue(&mut self) {
        self.is_paused = !self.is_paused;
        if self.refresh.is_none() {
            self.next_at = (!self.is_paused).then(BootTime::now);
        }
    }

    /// Waits until something happens or the frame must change. `is_drawn` tells whether the terminal has the current
    /// frame.
    fn wait(&self, is_drawn: bool) -> Result<(), Failure> {
        let until_next = self.next_at.map(|next_at| next_at - BootTime::now());
        let has_growing_time = self.refresh.is_some() || self.lost_since.is_some();
        let limits = [until_next, has_growing_time.then_some(TICK), (!is_drawn).then_some(REDRAW)];
        let limit = limits.into_iter().flatten().min();
        self.inbox.wait_with(self.screen.keyboard().into_iter().collect(), limit)?;
        while let Some(received) = self.inbox.signal()? {
            handle_signal(received, || self.screen.leave())?;
            if received.signal == libc::SIGCONT {
                self.screen.forget();
            }
        }
        Ok(())
    }

    fn draw(&self) -> Result<bool, Failure> {
        let (height, width) = self.screen.size()?;
        let page = self.page(width);
        let mut lines: Vec<&str> = page.lines().collect();
        let room = height.saturating_sub(2);
        let hidden = lines.len().saturating_sub(room);
        let more = if hidden > 0 { format!("... {hidden} more; a larger terminal shows them") } else { String::new() };
        lines.resize(room, "");
        lines.extend([&*more, KEYS]);
        self.screen.draw(&lines)
    }

    fn page(&self, width: usize) -> String {
        let Some(walk) = &self.shown else { return format!("{}\n", self.status("reading the locks".to_owned())) };
        let page = Page { walk, before: self.before.as_ref(), servers: self.servers, order: self.order };
        page.show(&self.status(page.cost()), width)
    }

    /// Describes the connection. `usual` is the description if the servers answer.
    fn status(&self, usual: String) -> String {
        let pause = if self.is_paused { "paused; " } else { "" };
        if let Some(since) = self.lost_since {
            let (time, lasts) = (show_time(since, &TimeZone::system()), duration::age(Some(since), wall_time()));
            return format!("{pause}no connection since {time} ({lasts})");
        }
        let running = self.refresh.as_ref().map(|refresh| BootTime::now() - refresh.started);
        match running.filter(|running| *running >= TICK) {
            Some(running) => format!("{pause}connected; the refresh has run for {}", duration::show_seconds(running)),
            None => format!("{pause}{usual}"),
        }
    }
}
