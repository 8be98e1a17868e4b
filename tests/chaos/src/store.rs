//! What locks are for: something that is written to. It keeps the highest token for each path, and refuses what comes with a lower one.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::judge::Write;

/// A store on loopback. Programs send lines `PATH TOKEN`, and read a byte: `y` or `n`.
pub(crate) struct Store {
    address: String,
    book: Arc<Mutex<Book>>,
}

#[derive(Default)]
struct Book {
    highest: HashMap<String, i64>,
    writes: Vec<Write>,
}

impl Store {
    /// Opens it. Its threads end with the programs, and the one that listens with the process.
    pub(crate) fn open() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let book = Arc::new(Mutex::new(Book::default()));
        let of_thread = Arc::clone(&book);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let book = Arc::clone(&of_thread);
                // A program that was killed has nothing more to write.
                thread::spawn(move || serve(&stream, &book));
            }
        });
        Ok(Self { address, book })
    }

    /// Where it is.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// All that it was asked to write, in its order.
    pub(crate) fn writes(&self) -> Vec<Write> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner).writes.clone()
    }
}

impl Book {
    fn write(&mut self, path: &str, token: i64) -> bool {
        let highest = self.highest.entry(path.to_owned()).or_insert(i64::MIN);
        let is_accepted = token >= *highest;
        *highest = token.max(*highest);
        self.writes.push(Write { path: path.to_owned(), token, is_accepted });
        is_accepted
    }
}

fn serve(stream: &TcpStream, book: &Mutex<Book>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    for line in BufReader::new(stream).lines() {
        let line = line?;
        let order = line.split_once(' ').and_then(|(path, token)| Some((path, token.parse().ok()?)));
        let (path, token) = order.ok_or_else(|| io::Error::other(format!("not a path and a token: {line:?}")))?;
        let is_accepted = book.lock().unwrap_or_else(PoisonError::into_inner).write(path, token);
        (&mut &*stream).write_all(if is_accepted { b"y" } else { b"n" })?;
    }
    Ok(())
}
