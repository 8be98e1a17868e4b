//! The C functions, one after the other on a small pool of handles, against a server in this process: in the order and with the
//! arguments that the bytes say, live handles and dead ones. The functions are in a table that is made from the header.

#![allow(unsafe_code, reason = "it is C that is called")]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use zklock_standalone::Server;

use crate::dice::Dice;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "a header need not have all of them")]
enum Returns {
    Nothing,
    Status,
    Answer,
    Id,
    Text,
    Handle,
    Number,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "a header need not have all of them")]
enum Kind {
    Handle(&'static str),
    HandleOut(&'static str),
    Handles(&'static str),
    Text,
    Bytes,
    Buffer,
    StructOut,
    Count,
    Index,
    Int32,
    Int64,
    NumberOut,
    Callback(&'static str),
    User,
}

struct Function {
    name: &'static str,
    returns: Returns,
    parameters: &'static [(&'static str, Kind)],
    /// What its comment names.
    statuses: &'static [&'static str],
    call: fn(&[Value]) -> i64,
}

/// An argument: 64 bits that are what the function takes them for.
#[derive(Clone, Copy)]
struct Value(u64);

trait IntoC<T> {
    fn into_c(self) -> T;
}

impl<T> IntoC<*mut T> for Value {
    fn into_c(self) -> *mut T {
        std::ptr::with_exposed_provenance_mut(self.0 as usize)
    }
}

impl<T> IntoC<*const T> for Value {
    fn into_c(self) -> *const T {
        std::ptr::with_exposed_provenance(self.0 as usize)
    }
}

macro_rules! numbers {
    ($($number:ty)*) => { $(impl IntoC<$number> for Value {
        fn into_c(self) -> $number {
            self.0 as $number
        }
    })* };
}

numbers! { i32 i64 u64 usize }

/// Callbacks: one that does nothing, or none.
impl<A, B> IntoC<Option<unsafe extern "C" fn(A, B)>> for Value {
    fn into_c(self) -> Option<unsafe extern "C" fn(A, B)> {
        unsafe extern "C" fn nothing<A, B>(_: A, _: B) {}
        (self.0 != 0).then_some(nothing::<A, B>)
    }
}

impl IntoC<Option<unsafe extern "C" fn(*mut c_void)>> for Value {
    fn into_c(self) -> Option<unsafe extern "C" fn(*mut c_void)> {
        unsafe extern "C" fn nothing(_: *mut c_void) {}
        (self.0 != 0).then_some(nothing)
    }
}

mod table {
    use super::{Function, IntoC as _, Kind, Returns};
    include!(concat!(env!("OUT_DIR"), "/functions.rs"));
    pub(super) const ALL: &[Function] = FUNCTIONS;
    pub(super) const KINDS: &[&str] = HANDLES;
}

/// The handles that were made, by kind, dead ones as well.
type Pool = Vec<Vec<u64>>;

/// No more of a kind are kept.
const MOST: usize = 6;
/// The handles that somebody may wait on.
static WAITED_ON: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Calls what the bytes say, then frees everything. One at a time, since those that wait are woken by who frees what they wait on.
pub fn run(data: &[u8]) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let servers = server();
    let mut dice = Dice::new(data);
    let mut pool: Pool = table::KINDS.iter().map(|_| Vec::new()).collect();
    while !dice.is_empty() {
        call(&mut dice, &mut pool, servers);
    }
    for (kind, name) in table::KINDS.iter().enumerate() {
        let destroyers = ["_free", "_release"].map(|end| format!("{name}{end}"));
        let destroy = table::ALL.iter().find(|function| destroyers.iter().any(|name| name == function.name));
        let destroy = destroy.unwrap_or_else(|| panic!("{name} has neither a function _free nor one _release"));
        for handle in pool[kind].drain(..) {
            (destroy.call)(&[Value(handle)]);
        }
    }
    waited_on().clear();
}

fn call(dice: &mut Dice<'_>, pool: &mut Pool, servers: &CStr) {
    let function = &table::ALL[dice.below(table::ALL.len())];
    let texts = RefCell::new(Vec::new());
    let mut places = [[0_u64; 32]; 8];
    let mut values = Vec::new();
    let mut count = 0;
    for (at, &(name, kind)) in function.parameters.iter().enumerate() {
        let place = &mut places[at];
        place.fill(u64::MAX);
        let address = place.as_mut_ptr().expose_provenance() as u64;
        values.push(Value(match kind {
            Kind::Handle(kind) => handle(dice, pool, kind),
            Kind::HandleOut(_) | Kind::NumberOut => address * u64::from(dice.byte() != 255),
            Kind::Handles(kind) => {
                count = dice.below(4);
                place[..count].fill_with(|| handle(dice, pool, kind));
                address
            }
            Kind::Text => text(dice, name, servers, &texts),
            Kind::Bytes => {
                count = dice.below(32);
                address
            }
            Kind::Buffer => {
                count = dice.below(257);
                address
            }
            Kind::StructOut => {
                count = dice.below(257);
                address
            }
            Kind::Count => count as u64,
            Kind::Index => dice.below(5) as u64,
            Kind::Int32 | Kind::Int64 => number(dice, name),
            Kind::Callback(_) => u64::from(dice.byte() & 3),
            Kind::User => 0,
        }));
    }
    let result = (function.call)(&values);
    let message = last_error();
    if matches!(function.returns, Returns::Status | Returns::Answer) {
        assert!(result >= 0 || !message.is_empty(), "{}: {result} without a message", function.name);
        if result < 0 {
            let name = zklock::Status::ALL.iter().find(|status| i64::from(status.number()) == result).unwrap().name();
            let is_named = function.statuses.iter().any(|status| name.ends_with(&format!("_E_{status}")));
            assert!(is_named && name != "ZKL_E_INTERNAL", "{} returned {name}: {message}", function.name);
        }
    }
    for (at, &(_, kind)) in function.parameters.iter().enumerate() {
        let made = places[at][0];
        match kind {
            Kind::HandleOut(kind) if made != u64::MAX => {
                assert!(result == 0 && values[at].0 != 0, "{}: a handle was made, and {result}", function.name);
                keep(pool, kind, made);
            }
            _ => {}
        }
    }
    if function.returns == Returns::Handle && result != 0 {
        let kind = table::KINDS.iter().find(|kind| function.name.starts_with(**kind)).unwrap();
        keep(pool, kind, result as u64);
    }
}

/// One of the pool, of this kind or of another, or anything.
fn handle(dice: &mut Dice<'_>, pool: &Pool, kind: &str) -> u64 {
    let kind = match dice.byte() {
        255 => return 0,
        254 => return dice.i64() as u64,
        253 => dice.below(pool.len()),
        _ => kind_of(kind),
    };
    if pool[kind].is_empty() { 0 } else { dice.pick(&pool[kind]) }
}

fn keep(pool: &mut Pool, kind: &str, handle: u64) {
    waited_on().push(handle);
    let kind = kind_of(kind);
    if pool[kind].len() < MOST {
        return pool[kind].push(handle);
    }
    // Nobody gets more; what is too much goes at once, in the place of the oldest.
    let before = std::mem::replace(&mut pool[kind][0], handle);
    let name = table::KINDS[kind];
    let free =
        table::ALL.iter().find(|f| f.name == format!("{name}_free") || f.name == format!("{name}_release")).unwrap();
    (free.call)(&[Value(before)]);
    pool[kind].rotate_left(1);
}

fn kind_of(name: &str) -> usize {
    table::KINDS.iter().position(|kind| *kind == name).unwrap()
}

fn text(dice: &mut Dice<'_>, name: &str, servers: &CStr, kept: &RefCell<Vec<CString>>) -> u64 {
    // Other servers would be looked for in the network.
    let text = match name {
        "servers" => servers.to_owned(),
        "scheme" => c"digest".to_owned(),
        "labels" => dice.pick(&[c"", c"a=\"b\"", c"a=\"\\", c"le=\"1\""]).to_owned(),
        "count_path" => dice.pick(&[c"/count", c"/other", c"/a", c"", c"/zookeeper"]).to_owned(),
        _ => match dice.byte() {
            255 => return 0,
            254 => CString::new(dice.bytes().split(|byte| *byte == 0).next().unwrap_or_default()).unwrap(),
            _ => dice.pick(&[c"/a", c"/b", c"/a/c", c"/d", c"/"]).to_owned(),
        },
    };
    kept.borrow_mut().push(text);
    kept.borrow().last().map_or(0, |text| text.as_ptr().expose_provenance() as u64)
}

fn number(dice: &mut Dice<'_>, name: &str) -> u64 {
    match name {
        // Nobody is to wait for long, or without an end.
        "timeout_ms" => dice.pick(&[0, 0, 1, 3, -2, i64::MIN]) as u64,
        // Of a session or a connection.
        "ms" => dice.pick(&[10_000, 0, -1, i64::from(i32::MIN)]) as u64,
        _ => dice.pick(&[1, 2, 3, 0, -1, i64::from(i32::MAX), i64::from(i32::MIN), 17]) as u64,
    }
}

fn last_error() -> String {
    let function = table::ALL.iter().find(|function| function.name == "zkl_last_error_message").unwrap();
    let message: *const c_char = Value((function.call)(&[]) as u64).into_c();
    // SAFETY: a text of the library's, which stays until the next call.
    unsafe { CStr::from_ptr(message) }.to_str().expect("a message that is not UTF-8").to_owned()
}

/// One server for all runs, and somebody who wakes those that wait without an end.
fn server() -> &'static CStr {
    static SERVER: OnceLock<(Server, CString)> = OnceLock::new();
    let (_, address) = SERVER.get_or_init(|| {
        let server = Server::start().unwrap();
        let address = CString::new(server.address().to_string()).unwrap();
        std::thread::spawn(wake);
        (server, address)
    });
    address
}

fn wake() {
    let cancel: Vec<&Function> = table::ALL.iter().filter(|function| function.name.ends_with("cancel")).collect();
    loop {
        std::thread::sleep(Duration::from_millis(5));
        let handles = waited_on().clone();
        for function in &cancel {
            for &handle in &handles {
                (function.call)(&[Value(handle)]);
            }
        }
    }
}

fn waited_on() -> MutexGuard<'static, Vec<u64>> {
    WAITED_ON.lock().unwrap_or_else(PoisonError::into_inner)
}
