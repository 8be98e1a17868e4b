//! Sockets of the library, known by more than their numbers.
//!
//! Programs that close descriptors wholesale, as daemons do, close the library's as well; the numbers then name other files. So before
//! anything is done to a number, the file behind it is compared. Calls on sockets also say by a flag that they must not block, and the
//! kernel refuses them on what is no socket. Between the comparison and the call is a gap of less than a microsecond, which nothing can close.

use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsRawFd, RawFd};

/// A socket that belongs to the library. Closed when it is dropped, unless its number has become another file's.
#[derive(Debug)]
pub(super) struct Socket<T: AsRawFd> {
    inner: ManuallyDrop<T>,
    file: File,
}

/// What tells one file of the machine from another. For sockets that is a number of their own; those of eventfd and epoll have one in common,
/// which is why neither is used where it would have to be told from a stranger's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct File {
    device: libc::dev_t,
    inode: libc::ino_t,
}

impl<T: AsRawFd> Socket<T> {
    pub(super) fn new(inner: T) -> io::Result<Self> {
        // If it is gone already, its number may be another file's, and is not closed.
        let inner = ManuallyDrop::new(inner);
        let file = File::behind(inner.as_raw_fd())?;
        Ok(Self { inner, file })
    }

    pub(super) fn is_ours(&self) -> bool {
        File::behind(self.as_raw_fd()).is_ok_and(|file| file == self.file)
    }

    /// The socket, to be used at once. An error if its number is not ours any more.
    pub(super) fn get(&mut self) -> io::Result<&mut T> {
        if self.is_ours() { Ok(&mut self.inner) } else { Err(lost()) }
    }

    /// The socket, for who has found it to be ours a moment ago.
    pub(super) fn just_checked(&mut self) -> &mut T {
        &mut self.inner
    }

    /// Sends as much as there is room for. Errors: `WouldBlock` for no room; one that says so if the number is not ours any more.
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the buffer has that many bytes.
        self.call(|socket| unsafe { libc::send(socket, bytes.as_ptr().cast(), bytes.len(), flags) })
    }

    /// Takes what has come in. Errors: `WouldBlock` for nothing; one that says so if the number is not ours any more.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the buffer has that many bytes.
        self.call(|socket| unsafe { libc::recv(socket, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) })
    }

    fn call(&self, call: impl FnOnce(RawFd) -> isize) -> io::Result<usize> {
        if !self.is_ours() {
            return Err(lost());
        }
        usize::try_from(call(self.as_raw_fd())).map_err(|_| io::Error::last_os_error())
    }
}

impl<T: AsRawFd> AsRawFd for Socket<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }
}

impl<T: AsRawFd> Drop for Socket<T> {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: dropped here only, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
        }
    }
}

impl File {
    fn behind(number: RawFd) -> io::Result<Self> {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: there is room for the answer.
        if unsafe { libc::fstat(number, stat.as_mut_ptr()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has succeeded, so it was filled in.
        let stat = unsafe { stat.assume_init() };
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

fn lost() -> io::Error {
    io::Error::other("another part of the program has closed the descriptor of this connection")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Gives the number of a socket to another file, as a program does that closes what is not its own.
    fn replace(number: RawFd, file: impl AsRawFd) -> OwnedFd {
        // SAFETY: the number is taken from its owner, which is what is being tested.
        assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);
        // SAFETY: the number has a new file, which is owned by nobody else.
        unsafe { OwnedFd::from_raw_fd(number) }
    }

    #[test]
    fn a_number_that_became_a_file_is_neither_written_nor_closed() {
        let path = std::env::temp_dir().join(format!("zklock-socket-{}", std::process::id()));
        let (one, _other) = UnixStream::pair().unwrap();
        let socket = Socket::new(one).unwrap();
        let stranger = replace(socket.as_raw_fd(), fs::File::create(&path).unwrap());
        assert!(!socket.is_ours());
        socket.send(b"frame").unwrap_err();
        socket.receive(&mut [0; 8]).unwrap_err();
        drop(socket);
        assert_eq!(fs::read(&path).unwrap(), b"");
        drop(stranger);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_number_that_became_another_socket_is_left_alone() {
        let (one, _other) = UnixStream::pair().unwrap();
        let (strange, far) = UnixStream::pair().unwrap();
        let mut socket = Socket::new(one).unwrap();
        assert_eq!(socket.send(b"frame").unwrap(), 5);
        let number = socket.as_raw_fd();
        let stranger = replace(number, strange);
        socket.send(b"frame").unwrap_err();
        socket.get().unwrap_err();
        let far = Socket::new(far).unwrap();
        assert_eq!(far.receive(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        far.send(b"reply").unwrap();
        socket.receive(&mut [0; 8]).unwrap_err();
        drop(socket);
        // It is still open, and has its reply.
        let stranger = Socket::new(UnixStream::from(stranger)).unwrap();
        assert_eq!(stranger.receive(&mut [0; 8]).unwrap(), 5);
    }

    #[test]
    fn a_socket_that_is_ours_is_closed_when_it_is_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = Socket::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap()).unwrap();
        let far = Socket::new(listener.accept().unwrap().0).unwrap();
        assert_eq!(far.receive(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(socket);
        assert_eq!(far.receive(&mut [0; 8]).unwrap(), 0);
    }
}
