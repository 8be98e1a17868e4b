//! Calls the C functions one after the other on a small pool of handles, against a server in this process. The input bytes determine the
//! order of the calls and their arguments, which include freed handles. A table generated from the header lists the functions.

#![allow(unsafe_code, reason = "the target calls the C functions")]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use arbitrary::Unstructured;
use zklock_standalone::Server;

use crate::choices::Choices;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "a header need not contain all of these")]
enum Returns {
    Nothing,
    Status,
    Predicate,
    Answer,
    Id,
    Text,
    Handle,
    Number,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "a header need not contain all of these")]
enum Kind {
    Handle(&'static str),
    HandleOut(&'static str),
    Handles(&'static str),
    Text,
    Bytes,
    Buffer,
    Array,
    StructOut,
    SizedStructOut,
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
    /// The status codes that the comment of the function names.
    statuses: &'static [&'static str],
    call: fn(&[Value]) -> i64,
}

/// An argument: 64 bits that each function interprets as its own type.
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

numbers! { i32 u32 i64 u64 usize }

/// Callbacks: a function that does nothing, or null.
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

/// A callback for credentials: a function that fails, or null.
impl IntoC<Option<unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> i64>> for Value {
    fn into_c(self) -> Option<unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> i64> {
        unsafe extern "C" fn failing(_: *mut c_void, _: *mut c_char, _: usize) -> i64 {
            -1
        }
        (self.0 != 0).then_some(failing)
    }
}

mod table {
    use super::{Function, IntoC as _, Kind, Returns};
    include!(concat!(env!("OUT_DIR"), "/functions.rs"));
    pub(super) const ALL: &[Function] = FUNCTIONS;
    pub(super) const KINDS: &[&str] = HANDLES;
}

/// The handles created so far, by kind. They include freed ones.
type Pool = Vec<Vec<u64>>;

/// Maximum number of handles of each kind.
const MAX_HANDLES_PER_KIND: usize = 6;
/// The handles that other threads may wait on.
static WAITED_ON: Mutex<Vec<u64>> = Mutex::new(Vec::new());

/// Performs the calls that the bytes determine, then frees all handles. Only one run is active at a time, because freeing handles wakes the
/// waiters of a run.
pub fn run(data: &[u8]) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let servers = server();
    let mut input = Unstructured::new(data);
    let mut pool: Pool = table::KINDS.iter().map(|_| Vec::new()).collect();
    while !input.is_empty() {
        call(&mut input, &mut pool, servers);
    }
    for (kind, name) in table::KINDS.iter().enumerate() {
        let destroyers = ["_free", "_release"].map(|end| format!("{name}{end}"));
        let destroy = table::ALL.iter().find(|function| destroyers.iter().any(|name| name == function.name));
        let destroy = destroy.unwrap_or_else(|| panic!("{name} has neither a _free function nor a _release function"));
        for handle in pool[kind].drain(..) {
            (destroy.call)(&[Value(handle)]);
        }
    }
    waited_on().clear();
}

fn call(input: &mut Unstructured<'_>, pool: &mut Pool, servers: &CStr) {
    let function = &table::ALL[input.index(table::ALL.len())];
    let texts = RefCell::new(Vec::new());
    let mut places = [[0_u64; 32]; 8];
    let mut values = Vec::new();
    let mut count = 0;
    for (at, &(name, kind)) in function.parameters.iter().enumerate() {
        let place = &mut places[at];
        place.fill(u64::MAX);
        let address = place.as_mut_ptr().expose_provenance() as u64;
        values.push(Value(match kind {
            Kind::Handle(kind) => handle(input, pool, kind),
            Kind::HandleOut(_) | Kind::NumberOut => address * u64::from(input.byte() != 255),
            Kind::Handles(kind) => {
                count = input.index(4);
                place[..count].fill_with(|| handle(input, pool, kind));
                address
            }
            Kind::Text => text(input, name, servers, &texts),
            Kind::Bytes => {
                count = input.index(32);
                address
            }
            Kind::Buffer => {
                count = input.index(257);
                address
            }
            Kind::Array => {
                count = input.index(33);
                address
            }
            Kind::StructOut => address,
            Kind::SizedStructOut => {
                place[0] = input.index(257) as u64;
                address
            }
            // Before a struct, this argument is the size of the struct as the program knows it.
            Kind::Count if matches!(function.parameters.get(at + 1), Some((_, Kind::StructOut))) => {
                input.index(257) as u64
            }
            Kind::Count => count as u64,
            Kind::Index => input.index(5) as u64,
            Kind::Int32 | Kind::Int64 => number(input, name),
            Kind::Callback(_) => u64::from(input.byte() & 3),
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
    if function.returns == Returns::Predicate {
        assert!(matches!(result, 0 | 1), "{} returned {result}", function.name);
    }
    for (at, &(_, kind)) in function.parameters.iter().enumerate() {
        let made = places[at][0];
        match kind {
            Kind::HandleOut(kind) if made != u64::MAX => {
                assert!(
                    result == 0 && values[at].0 != 0,
                    "{}: the call made a handle, but returned {result}",
                    function.name
                );
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

/// Returns a handle of this kind from the pool, a handle of another kind, or an arbitrary number.
fn handle(input: &mut Unstructured<'_>, pool: &Pool, kind: &str) -> u64 {
    let kind = match input.byte() {
        255 => return 0,
        254 => return input.i64() as u64,
        253 => input.index(pool.len()),
        _ => kind_of(kind),
    };
    if pool[kind].is_empty() { 0 } else { input.pick(&pool[kind]) }
}

fn keep(pool: &mut Pool, kind: &str, handle: u64) {
    waited_on().push(handle);
    let kind = kind_of(kind);
    if pool[kind].len() < MAX_HANDLES_PER_KIND {
        return pool[kind].push(handle);
    }
    // The pool keeps a fixed number of handles. A new one replaces the oldest, which is freed at once.
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

fn text(input: &mut Unstructured<'_>, name: &str, servers: &CStr, kept: &RefCell<Vec<CString>>) -> u64 {
    // Other server names would cause network requests.
    let text = match name {
        "servers" => servers.to_owned(),
        "scheme" => c"digest".to_owned(),
        "labels" => input.pick(&[c"", c"a=\"b\"", c"a=\"\\", c"le=\"1\""]).to_owned(),
        "period" => input.pick(&[c"day", c"1s", c"@hourly", c"noon", c""]).to_owned(),
        "count_path" => input.pick(&[c"/count", c"/other", c"/a", c"", c"/zookeeper"]).to_owned(),
        _ => match input.byte() {
            255 => return 0,
            254 => CString::new(input.some_bytes().split(|byte| *byte == 0).next().unwrap_or_default()).unwrap(),
            _ => input.pick(&[c"/a", c"/b", c"/a/c", c"/d", c"/"]).to_owned(),
        },
    };
    kept.borrow_mut().push(text);
    kept.borrow().last().map_or(0, |text| text.as_ptr().expose_provenance() as u64)
}

fn number(input: &mut Unstructured<'_>, name: &str) -> u64 {
    match name {
        // Waits must be short.
        "timeout_ms" => input.pick(&[0, 0, 1, 3, -2, i64::MIN]) as u64,
        // A session timeout or a connection timeout.
        "ms" => input.pick(&[10_000, 0, -1, i64::from(i32::MIN)]) as u64,
        _ => input.pick(&[1, 2, 3, 0, -1, i64::from(i32::MAX), i64::from(i32::MIN), 17]) as u64,
    }
}

fn last_error() -> String {
    let function = table::ALL.iter().find(|function| function.name == "zkl_last_error_message").unwrap();
    let message: *const c_char = Value((function.call)(&[]) as u64).into_c();
    // SAFETY: the text belongs to the library and stays valid until the next call.
    unsafe { CStr::from_ptr(message) }.to_str().expect("a message that is not UTF-8").to_owned()
}

/// Starts one server for all runs, and a thread that cancels endless waits.
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
