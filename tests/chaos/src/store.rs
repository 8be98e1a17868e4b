//! A store whose data the locks protect. It keeps the largest token of each path and rejects writes with a smaller
//! token.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::checker::Write;

/// A store on loopback. A program sends lines `PATH TOKEN` and receives one byte for each: `y` or `n`.
pub(crate) struct Store {
    address: String,
    state: Arc<Mutex<StoreState>>,
}

#[derive(Default)]
struct StoreState {
    highest: HashMap<String, i64>,
    writes: Vec<Write>,
}

impl Store {
    /// Starts the store. Each connection has a thread that ends with the program. The listening thread ends with this
    /// process.
    pub(crate) fn open() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let state = Arc::new(Mutex::new(StoreState::default()));
        let of_thread = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let book = Arc::clone(&of_thread);
                // The thread ignores a connection error, because a killed program writes nothing more.
                thread::spawn(move || serve(&stream, &book));
            }
        });
        Ok(Self { address, state })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// All writes that the store received, in order.
    pub(crate) fn writes(&self) -> Vec<Write> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).writes.clone()
    }
}

impl StoreState {
    fn write(&mut self, path: &str, token: i64) -> bool {
        let highest = self.highest.entry(path.to_owned()).or_insert(i64::MIN);
        let is_accepted = token >= *highest;
        *highest = token.max(*highest);
        self.writes.push(Write { path: path.to_owned(), token, is_accepted });
        is_accepted
    }
}

fn serve(stream: &TcpStream, state: &Mutex<StoreState>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    for line in BufReader::new(stream).lines() {
        let line = line?;
        let order = line.split_once(' ').and_then(|(path, token)| Some((path, token.parse().ok()?)));
        let (path, token) = order.ok_or_else(|| io::Error::other(format!("not a path and a token: {line:?}")))?;
        let is_accepted = state.lock().unwrap_or_else(PoisonError::into_inner).write(path, token);
        (&mut &*stream).write_all(if is_accepted { b"y" } else { b"n" })?;
    }
    Ok(())
}
