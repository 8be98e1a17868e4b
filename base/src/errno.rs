//! The values of `errno` on Linux that correspond to statuses.
//!
//! This crate does not depend on the C library, so this module contains the numbers. The crate `zklock` compares them
//! with the C library of the target when it is compiled.

use std::ffi::c_int;

macro_rules! errno {
    ($($name:ident = $number:literal,)+) => {
        $(#[doc = concat!("The number of `", stringify!($name), "`.")] pub const $name: c_int = $number;)+
    };
}

errno! {
    EPERM = 1,
    EIO = 5,
    EBADF = 9,
    ECHILD = 10,
    EACCES = 13,
    EBUSY = 16,
    EINVAL = 22,
    ERANGE = 34,
    EDEADLK = 35,
    EOVERFLOW = 75,
    EOPNOTSUPP = 95,
    ENOTCONN = 107,
    ESHUTDOWN = 108,
    ETIMEDOUT = 110,
    EINPROGRESS = 115,
    ESTALE = 116,
    ECANCELED = 125,
    ENOTRECOVERABLE = 131,
}
