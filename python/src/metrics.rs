//! What a client has done so far: the classes of `zklock/_metrics.py`, and a text for Prometheus.

use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyTuple};
use zklock::{Histogram, Labels, Metrics, Value};

use crate::errors::OrRaise;
use crate::needed::needed;
use crate::states::client_state;

/// Its `Metrics`: each field by its name in the core's table.
pub(crate) fn object<'py>(py: Python<'py>, metrics: &Metrics) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    for metric in Metrics::ALL {
        match metric.value(metrics) {
            Value::Number(number) => fields.set_item(metric.field, number)?,
            Value::Span(span) => fields.set_item(metric.field, seconds(span))?,
            Value::Histogram(value) => fields.set_item(metric.field, histogram(py, value)?)?,
            Value::State(state) => fields.set_item(metric.field, client_state(py, state)?)?,
        }
    }
    needed(py)?.metrics.bind(py).call((), Some(&fields))
}

fn histogram<'py>(py: Python<'py>, histogram: &Histogram) -> PyResult<Bound<'py, PyAny>> {
    let bound = |bound: Option<Duration>| bound.map_or(f64::INFINITY, seconds);
    let buckets =
        PyTuple::new(py, histogram.buckets().map(|(limit, count)| (bound(limit), count)).collect::<Vec<_>>())?;
    needed(py)?.histogram.bind(py).call1((histogram.count(), seconds(histogram.sum()), buckets))
}

/// The nearest that there is, as the text for Prometheus has it.
fn seconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e9
}

/// Labels that a program gave.
pub(crate) fn labels(given: Option<&Bound<'_, PyAny>>) -> PyResult<Labels> {
    let mut labels = Labels::new();
    let Some(given) = given else { return Ok(labels) };
    let wrong = |kind: Bound<'_, PyAny>, what: &str| -> PyResult<PyErr> {
        let kind = kind.get_type().name()?;
        Ok(PyTypeError::new_err(format!("labels: expected {what}, not {kind}")))
    };
    let Ok(mapping) = given.cast::<PyMapping>() else {
        return Err(wrong(given.clone(), "a mapping of names to values, or None")?);
    };
    for item in mapping.items()? {
        let (name, value) = item.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>()?;
        let (Ok(name_text), Ok(value_text)) = (name.extract::<String>(), value.extract::<String>()) else {
            let which = if name.extract::<String>().is_err() { name } else { value };
            return Err(wrong(which, "names and values that are str")?);
        };
        labels.add(&name_text, &value_text).or_raise(given.py())?;
    }
    Ok(labels)
}
