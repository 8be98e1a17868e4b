//! Checks at compile time that zklock-base and the target's C library agree on the `errno` numbers. The code in this
//! file defines no numbers.

macro_rules! assert_same {
    ($($name:ident)+) => {
        $(const _: () = assert!(zklock_core::errno::$name == libc::$name, concat!(stringify!($name), " has another number here"));)+
    };
}

assert_same! {
    EPERM EIO EBADF ECHILD EACCES EBUSY EINVAL ERANGE EDEADLK EOVERFLOW EOPNOTSUPP ENOTCONN ESHUTDOWN ETIMEDOUT EINPROGRESS ESTALE
    ECANCELED ENOTRECOVERABLE
}
