//! Connects a client to a server. The shell loads the inputs of the attempt, resolves the name of the server, and tries
//! its addresses. The code in this file does not decide which server comes next or when an attempt has taken too long.

use std::io;
use std::net::SocketAddr;
use std::sync::Weak;

use zklock_core::error::{Error, Result, Status};
use zklock_core::session::{ConnectionEvent, Server};
use zklock_core::time::Time;
use zklock_process::exhausted_resource;

use super::{LateAddresses, ReadyInputs, Shell, SocketState, State, continue_securing, lose_connection};
use crate::runtime::attempt_inputs::LoadedInputs;
use crate::runtime::connection::Connection;
use crate::runtime::sync::{MutexGuard, lock};
use crate::runtime::{clock, resolve, tls};

impl Shell {
    pub(super) fn connect(&self, state: &mut State, now: Time, server: Server) {
        if state.inputs.can_block() {
            if state.has_ready_inputs(now, &server) {
                return self.resolve(state, now, server);
            }
            return self.load_inputs(state, now, server);
        }
        if let Some(Ok(loaded)) = state.inputs.load(Some(&server), || true) {
            state.engine.set_credentials(loaded.credentials, loaded.sasl);
        }
        self.resolve(state, now, server);
    }

    fn load_inputs(&self, state: &mut State, now: Time, server: Server) {
        state.engine.on_connection_event(now, ConnectionEvent::LoadingInputs(&state.inputs.names()));
        state.socket_state = SocketState::Loading(server.clone());
        if let Err(error) = self.start_loading_thread(state, Some(server)) {
            lack_resources(state, now, error.message());
        }
    }

    /// Starts loading the inputs for the next attempt to connect while the client is still connected.
    pub(super) fn load_before_departure(&self, state: &mut State, now: Time) {
        if let Err(error) = self.start_loading_thread(state, None) {
            state.engine.loading_failed(now, &error, false);
            state.engine.on_connection_event(now, ConnectionEvent::LoadFailed);
        }
    }

    /// Starts a thread that loads the inputs, unless a thread is already loading the inputs. `server` is the next server,
    /// if it is known. Errors: EXHAUSTED if no thread can be started.
    fn start_loading_thread(&self, state: &mut State, server: Option<Server>) -> Result<()> {
        if state.loading.is_running {
            return Ok(());
        }
        let (wanting, this) = (Weak::clone(&self.this), Weak::clone(&self.this));
        let is_wanted = move || wanting.upgrade().is_some_and(|shell| shell.wants_inputs());
        let started = state.inputs.load_in_background(server, is_wanted, move |loaded| {
            if let Some(shell) = this.upgrade() {
                shell.on_loaded(loaded);
            }
        });
        started.map_err(|cause| {
            let inputs = state.inputs.names();
            let why = format!("{inputs} cannot be loaded, because no thread can be started: {cause}");
            Error::new(Status::Exhausted, why)
        })?;
        state.loading.is_running = true;
        Ok(())
    }

    /// Returns whether the client may still connect. A client that has failed to connect must not call a program callback
    /// again before the program drops it. A forked child returns false without locking the state, because a
    /// thread of the parent may hold the lock.
    fn wants_inputs(&self) -> bool {
        let is_open = |state: MutexGuard<'_, State>| {
            state.io_thread.is_some() && !state.has_failed && !state.engine.has_failed_to_connect()
        };
        self.check_process().is_ok() && is_open(lock(&self.state))
    }

    fn on_loaded(&self, loaded: Result<LoadedInputs>) {
        // In a child that a callback has forked, the copy of this thread must not change the state.
        if self.check_process().is_err() {
            return;
        }
        // If the client has failed, it no longer connects.
        let _ = self.with_state(|state| {
            state.loading.is_running = false;
            if state.io_thread.is_none() {
                return;
            }
            let now = clock::now();
            let loaded_for = loaded.as_ref().ok().and_then(|loaded| loaded.server.clone());
            let failed = match loaded {
                Ok(loaded) => {
                    if let Some(error) = &loaded.tls_error {
                        state.engine.loading_failed(now, error, false);
                    }
                    state.engine.set_credentials(loaded.credentials, loaded.sasl);
                    state.loading.has_succeeded = true;
                    None
                }
                Err(error) => {
                    state.engine.loading_failed(now, &error, !state.loading.has_succeeded);
                    // The client continues to use inputs that were loaded earlier, except credentials. The engine does
                    // not keep credentials that it has sent.
                    let has_credentials = !state.inputs.has_credentials()
                        || (state.engine.has_credentials() && !state.inputs.depend_on_server());
                    (!state.loading.has_succeeded || !has_credentials).then_some(error)
                }
            };
            match (std::mem::replace(&mut state.socket_state, SocketState::Idle), failed) {
                // The thread began to load the inputs before the client chose this server.
                (SocketState::Loading(server), None) if !state.can_use_inputs(loaded_for.as_ref(), &server) => {
                    state.loading.ready = None;
                    state.socket_state = SocketState::Loading(server.clone());
                    if let Err(error) = self.start_loading_thread(state, Some(server)) {
                        lack_resources(state, now, error.message());
                    }
                }
                (SocketState::Loading(server), None) => {
                    state.loading.ready = None;
                    state.engine.on_connection_event(now, ConnectionEvent::InputsLoaded);
                    self.resolve(state, now, server);
                }
                (SocketState::Loading(_), Some(error)) => self.fail_attempt(state, now, error.message()),
                // The client is not currently waiting for these inputs. Either the client has not left its server yet,
                // or the attempt to connect ended before the loading did. The next attempt uses the inputs.
                (other, failed) => {
                    state.socket_state = other;
                    let connections = state.engine.metrics().connections;
                    let ready = ReadyInputs { loaded_at: now, connections, server: loaded_for };
                    state.loading.ready = failed.is_none().then_some(ready);
                    if failed.is_none() {
                        state.engine.on_connection_event(now, ConnectionEvent::InputsLoaded);
                    } else {
                        state.engine.on_connection_event(now, ConnectionEvent::LoadFailed);
                    }
                }
            }
        });
    }

    fn resolve(&self, state: &mut State, now: Time, server: Server) {
        if let Some(address) = resolve::literal(&server) {
            return self.connect_to_any(state, now, &server, vec![address]);
        }
        state.resolved.retain(|late| late.is_recent(now));
        if let Some(at) = state.resolved.iter().position(|late| late.server == server) {
            let late = state.resolved.swap_remove(at);
            return self.connect_to_any(state, now, &server, late.addresses);
        }
        state.socket_state = SocketState::Resolving(server.clone());
        if state.resolving.contains(&server) {
            return;
        }
        let (this, name) = (Weak::clone(&self.this), server.clone());
        let started = resolve::in_background(&server, move |addresses| {
            if let Some(shell) = this.upgrade() {
                shell.on_resolved(&name, addresses);
            }
        });
        match started {
            Ok(()) => state.resolving.push(server),
            Err(cause) => {
                let cause = format!("its name cannot be resolved, because no thread can be started: {cause}");
                lack_resources(state, now, &cause);
            }
        }
    }

    fn on_resolved(&self, server: &Server, addresses: resolve::ResolveResult) {
        // If the client has failed, it no longer connects.
        let _ = self.with_state(|state| {
            state.resolving.retain(|resolving| resolving != server);
            let now = clock::now();
            let wanted = matches!(&state.socket_state, SocketState::Resolving(wanted) if wanted == server);
            if !wanted {
                // The resolver was slow, so the client now connects to another server. The client will try this server
                // again soon.
                let addresses = addresses.unwrap_or_default();
                if !addresses.is_empty() && state.io_thread.is_some() {
                    state.resolved.push(LateAddresses { server: server.clone(), addresses, received_at: now });
                }
                return;
            }
            match addresses {
                Ok(addresses) if !addresses.is_empty() => self.connect_to_any(state, now, server, addresses),
                Ok(_) => self.fail_attempt(state, now, "its name has no address"),
                Err(cause) => self.fail_attempt(state, now, &format!("its name cannot be resolved: {cause}")),
            }
        });
    }

    /// Starts connecting to one of the addresses of a server. An attempt begins with the address after the one that the
    /// client tried last. If one address never answers, the client therefore still tries the other addresses.
    fn connect_to_any(&self, state: &mut State, now: Time, server: &Server, mut addresses: Vec<SocketAddr>) {
        if let Some(last) = state.tried.get(server)
            && let Some(at) = addresses.iter().position(|address| address == last)
        {
            addresses.rotate_left(at + 1);
        }
        self.connect_to_next(state, now, server, addresses, "no address");
    }

    /// Tries the addresses in order. Stops at the first address for which the attempt to connect does not fail at once.
    fn connect_to_next(
        &self,
        state: &mut State,
        now: Time,
        server: &Server,
        mut addresses: Vec<SocketAddr>,
        cause: &str,
    ) {
        let mut cause = cause.to_owned();
        while !addresses.is_empty() {
            let address = addresses.remove(0);
            match self.start_connection(state, server, address) {
                Ok(connection) => {
                    let server = server.clone();
                    if state.tried.insert(server.clone(), address).is_none() {
                        let engine = &state.engine;
                        state.tried.retain(|tried, _| engine.uses_server(tried));
                    }
                    state.socket_state = SocketState::Connecting { server, connection, others: addresses };
                    return;
                }
                Err(error) if tls::is_refusal(&error) => return lose_connection(state, now, &error),
                Err(error) => {
                    if let Some(what) = exhausted_resource(&error) {
                        // This machine lacks a resource, so an attempt with another address would fail too.
                        return lack_resources(state, now, &format!("{what} ({error})"));
                    }
                    cause = error.to_string();
                }
            }
        }
        self.fail_attempt(state, now, &cause);
    }

    fn start_connection(&self, state: &State, server: &Server, address: SocketAddr) -> io::Result<Connection> {
        let io = state.io_thread.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        Connection::connect(io, self.token, address, state.inputs.start_tls(server)?)
    }

    pub(super) fn finish_connecting(&self, state: &mut State, now: Time) {
        #[cfg_attr(zklock_loom, allow(unused_mut, reason = "a simulated connection has no result"))]
        let SocketState::Connecting { server, mut connection, others } =
            std::mem::replace(&mut state.socket_state, SocketState::Idle)
        else {
            return;
        };
        let failed = match connection.outcome() {
            Some(Ok(local_address)) => {
                if connection.is_encrypted() {
                    state.engine.on_connection_event(now, ConnectionEvent::Securing);
                }
                state.socket_state = SocketState::Securing { connection, local_address };
                return continue_securing(state, now);
            }
            None => {
                // The event reports an earlier state of the socket, so the attempt to connect continues.
                state.socket_state = SocketState::Connecting { server, connection, others };
                return;
            }
            Some(Err(cause)) => cause,
        };
        self.connect_to_next(state, now, &server, others, &failed.to_string());
    }

    pub(super) fn fail_attempt(&self, state: &mut State, now: Time, cause: &str) {
        state.socket_state = SocketState::Idle;
        state.engine.on_connection_event(now, ConnectionEvent::Disconnected(cause));
    }
}

/// Ends an attempt to connect, because this machine lacks a resource.
fn lack_resources(state: &mut State, now: Time, cause: &str) {
    state.socket_state = SocketState::Idle;
    state.engine.on_connection_event(now, ConnectionEvent::OutOfResources(cause));
}
