//! A directory that belongs to one object of a test.

use std::ffi::CString;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The file system in memory.
const MEMORY: &str = "/dev/shm";

/// A directory. Dropping it removes the directory.
pub(crate) struct Directory(PathBuf);

/// The storage of the files.
#[derive(Clone, Copy)]
pub(crate) enum Storage {
    /// In memory, if the machine has a file system for that.
    Memory,
    Disk,
}

impl Directory {
    pub(crate) fn create(medium: Storage) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let name = format!("zklock-rig-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let on_disk = || make(std::env::temp_dir().join(&name));
            let made = match medium {
                Storage::Memory if has_room(MEMORY) => make(Path::new(MEMORY).join(&name)).or_else(|_| on_disk()),
                Storage::Memory => on_disk(),
                Storage::Disk => on_disk(),
            };
            match made {
                Ok(path) => return Self(path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("create a directory: {error}"),
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

/// Returns whether a file system has room for the servers of all tests that run side by side. Containers often have
/// only 64 MB of shared memory, which is the size of one transaction log.
fn has_room(path: &str) -> bool {
    const LEAST: u64 = 2 << 30;
    let Ok(path) = CString::new(path) else { return false };
    let mut stat = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: The path ends with a NUL, and `stat` has room for the result.
    if unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: `statvfs` has succeeded, so it has initialized `stat`.
    let stat = unsafe { stat.assume_init() };
    stat.f_bavail * stat.f_frsize >= LEAST
}

fn make(path: PathBuf) -> io::Result<PathBuf> {
    fs::create_dir(&path).map(|()| path)
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that removes a directory when the value is dropped, or when the test process ends for any reason. Rust
/// does not drop the values in a `static`.
pub(crate) struct Remover(Child);

impl Remover {
    pub(crate) fn start(directory: &Path) -> Self {
        let child = Command::new("sh")
            .args(["-c", r#"cat >/dev/null; rm -rf "$1""#, "remover"])
            .arg(directory)
            .stdin(Stdio::piped())
            // Ctrl-C ends only the test process.
            .process_group(0)
            .spawn();
        Self(child.expect("start sh"))
    }
}

impl Drop for Remover {
    fn drop(&mut self) {
        // This closes the standard input of the process.
        let _ = self.0.wait();
    }
}
