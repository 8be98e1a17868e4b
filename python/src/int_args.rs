//! Converts integer arguments: numbers of leases, limits of local hand-overs, values of shared counts, fencing tokens, and request
//! numbers. The functions check only the type, and whether the core's type can represent the number. The core checks all other
//! limits.

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyBool;

use crate::display::{repr, type_name};
use crate::errors::{wrong_type, wrong_value};

pub(crate) fn max_leases(value: &Bound<'_, PyAny>) -> PyResult<Option<i32>> {
    if value.is_none() { Ok(None) } else { parse("max_leases", value, "1 to 2147483647").map(Some) }
}

pub(crate) fn initial(value: &Bound<'_, PyAny>) -> PyResult<Option<i32>> {
    if value.is_none() { Ok(None) } else { parse("initial", value, COUNT).map(Some) }
}

pub(crate) fn value(value: &Bound<'_, PyAny>) -> PyResult<i32> {
    parse("value", value, COUNT)
}

pub(crate) fn quantity(value: &Bound<'_, PyAny>) -> PyResult<i32> {
    parse("quantity", value, "1 to 2147483647")
}

pub(crate) fn max_passes(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    parse("max_passes", value, "0 to 4294967295")
}

pub(crate) fn local_handover(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    parse("local_handover", value, "0 to 4294967295")
}

pub(crate) fn token(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    parse("token", value, "1 to 9223372036854775807")
}

pub(crate) fn op(value: &Bound<'_, PyAny>) -> PyResult<i32> {
    parse("op", value, "the number of a ZooKeeper request")
}

const COUNT: &str = "-2147483648 to 2147483647";

fn parse<'a, 'py, T: FromPyObject<'a, 'py>>(
    argument: &str,
    value: &'a Bound<'py, PyAny>,
    expected: &str,
) -> PyResult<T> {
    let py = value.py();
    let wrong = || {
        let kind = type_name(value);
        wrong_type(format!("{argument}: expected an int, not {kind}"))
    };
    if value.is_instance_of::<PyBool>() {
        return Err(wrong());
    }
    value.extract().map_err(|error: T::Error| {
        let error: PyErr = error.into();
        if error.is_instance_of::<PyOverflowError>(py) {
            match repr(value) {
                Ok(given) => wrong_value(format!("{argument}: {given}; expected {expected}")),
                Err(failure) => failure,
            }
        } else if error.is_instance_of::<PyTypeError>(py) {
            wrong()
        } else {
            error
        }
    })
}
